#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "model/config.h"
#include "shard/param_unit.h"
#include "shard/unit_gradient.h"

namespace fastsft {

// Where the parameters of a decoder are: unit 0 is the embedding, 1..num_layers the blocks, the
// last one head and final norm. Tied: unit 0 is [embedding, final norm] and there is no last one.
class DecoderLayout {
 public:
  explicit DecoderLayout(const ModelConfig& config);

  const std::vector<ParamUnit>& units() const { return units_; }
  size_t embedding_unit() const { return 0; }
  size_t block_unit(int64_t layer) const { return static_cast<size_t>(layer) + 1; }
  size_t head_unit() const { return tied_ ? 0 : units_.size() - 1; }
  bool tied() const { return tied_; }
  int64_t num_parameters() const;

 private:
  bool tied_;
  std::vector<ParamUnit> units_;
};

// A matrix or vector inside a unit: one tensor, or a fused group beginning at `offset`.
struct ParamRef {
  int64_t offset = 0;
  int64_t rows = 0;
  int64_t columns = 0;  // 0: a vector of `rows`

  at::Tensor view(const at::Tensor& flat) const;
};

// What a decoder block reads and writes, and how many tokens its attention sees (0: all).
struct BlockRefs {
  ParamRef qkv, output, gate_up, down, input_norm, post_norm;
  std::optional<ParamRef> qkv_bias, output_bias, gate_up_bias, down_bias;
  std::optional<ParamRef> qk_norm;  // [2, head_dim]: of the query heads, of the key heads
  int64_t window = 0;
};
BlockRefs block_refs(const ModelConfig& config, const ParamUnit& unit);

struct HeadRefs {
  ParamRef embedding;  // in the embedding unit
  ParamRef head;       // in the head unit; the embedding when tied
  ParamRef norm;       // in the head unit
};
HeadRefs head_refs(const ModelConfig& config, const DecoderLayout& layout);

}  // namespace fastsft
