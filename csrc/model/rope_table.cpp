#include "model/rope_table.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/pow.h>

#include <algorithm>

#include "core/error.h"

namespace fastsft {

at::Tensor rotary_frequencies(const RopeSettings& rope, int64_t head_dim) {
  const at::Tensor even = at::arange(0, head_dim, 2, at::TensorOptions().dtype(at::kLong));
  const at::Tensor exponent = even.to(at::kFloat).div(static_cast<double>(head_dim));
  return rope.scaling.frequencies(at::pow(rope.theta, exponent));
}

void check_positions(const RopeSettings& rope, int64_t positions) {
  const int64_t most = rope.scaling.most_positions;
  require(
      most == 0 || positions <= most, positions, " positions are asked for: beyond ", most,
      " tokens this model's rotary frequencies depend on how wide a batch is padded, which differs "
      "between FastChat, transformers and fastsft; use --model_max_length ",
      most, ", or train with transformers' Trainer");
}

RopeTables make_rope_tables(const ModelConfig& config, int64_t needed, int64_t spare,
                            at::Device device) {
  const auto make = [&](const RopeSettings& rope) -> RopeTable {
    check_positions(rope, needed);
    const int64_t most = rope.scaling.most_positions;
    const int64_t positions = most == 0 ? needed + spare : std::min(needed + spare, most);
    const at::Tensor frequencies = rotary_frequencies(rope, config.head_dim);
    const at::Tensor position = at::arange(positions, at::TensorOptions().dtype(at::kFloat));
    const at::Tensor angles = position.unsqueeze(1).mul(frequencies.unsqueeze(0));
    const double factor = rope.scaling.attention_factor;
    return {.cos = angles.cos().mul_(factor).to(device),
            .sin = angles.sin().mul_(factor).to(device)};
  };
  const RopeTable global = make(config.rope);
  return {.global = global, .local = config.local_rope ? make(*config.local_rope) : global};
}

}  // namespace fastsft
