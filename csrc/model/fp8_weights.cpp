#include "model/fp8_weights.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/error.h"

namespace fastsft {
namespace {

std::array<const ParamRef*, 4> linears_of_block(const BlockRefs& block) {
  return {&block.qkv, &block.output, &block.gate_up, &block.down};
}

// Bytes of a copy: an element has a byte, and a row a scale of float32. Sizes are multiples of 16
// (check_fp8_sizes), so matrices begin where cuBLASLt reads them.
int64_t copy_bytes(int64_t rows, int64_t columns) {
  return rows * columns + rows * static_cast<int64_t>(sizeof(float));
}

// Takes the copies out of `memory`, one after the other.
class Places {
 public:
  explicit Places(const at::Tensor& memory) : memory_(memory) {}

  Fp8Matrix take(int64_t rows, int64_t columns) {
    const at::Tensor values = bytes(rows * columns).view(at::kFloat8_e4m3fn).view({rows, columns});
    return {values, bytes(copy_bytes(rows, 0)).view(at::kFloat)};
  }

 private:
  at::Tensor bytes(int64_t count) {
    const at::Tensor part = memory_.narrow(0, end_, count);
    end_ += count;
    return part;
  }

  at::Tensor memory_;
  int64_t end_ = 0;
};

}  // namespace

int64_t Fp8Weights::plan(const BlockRefs& block, bool backward) {
  int64_t sum = 0;
  for (const ParamRef* weight : linears_of_block(block)) {
    sum += copy_bytes(weight->rows, weight->columns);
    if (backward) sum += copy_bytes(weight->columns, weight->rows);
  }
  return sum;
}

int64_t Fp8Weights::plan(const ModelConfig& config, const DecoderLayout& layout,
                         const Fp8Recipe& recipe) {
  const int64_t lowest = lowest_trained_layer(config, layout);
  int64_t sum = 0;
  for (int64_t layer = recipe.first_layer; layer < recipe.end_layer; ++layer)
    sum += plan(block_refs(config, layout, layer), layer >= lowest);
  return sum;
}

Fp8Weights::Fp8Weights(const Fp8Recipe& recipe, const BlockRefs& block, bool backward,
                       at::Device device)
    : recipe_(recipe),
      memory_(
          at::empty({plan(block, backward)}, at::TensorOptions().dtype(at::kByte).device(device))) {
  Places places(memory_);
  const auto weights = linears_of_block(block);
  for (size_t i = 0; i < weights.size(); ++i) {
    const ParamRef& weight = *weights[i];
    linears_[i].weight = &weight;
    linears_[i].forward.matrix = places.take(weight.rows, weight.columns);
    if (backward) linears_[i].backward.matrix = places.take(weight.columns, weight.rows);
  }
}

Fp8Weights::Linear& Fp8Weights::find(const ParamRef& weight) {
  const auto found = std::find_if(linears_.begin(), linears_.end(),
                                  [&](const Linear& linear) { return linear.weight == &weight; });
  FASTSFT_ASSERT(found != linears_.end(), "no linear layer at ", weight.offset);
  return *found;
}

Fp8Matrix Fp8Weights::forward(const ParamRef& weight, const PlaceWeights& weights) {
  Copy& copy = find(weight).forward;
  if (!copy.is_made) fp8_forward_weight(recipe_, weight.view(weights), copy.matrix);
  copy.is_made = true;
  return copy.matrix;
}

Fp8Matrix Fp8Weights::backward(const ParamRef& weight, const PlaceWeights& weights) {
  Copy& copy = find(weight).backward;
  if (!copy.is_made) fp8_backward_weight(recipe_, weight.view(weights), copy.matrix);
  copy.is_made = true;
  return copy.matrix;
}

void Fp8Weights::forget(ChangedWeights which) {
  for (Linear& linear : linears_) {
    if (which == ChangedWeights::kTrained && !linear.weight->trained) continue;
    linear.forward.is_made = linear.backward.is_made = false;
  }
}

}  // namespace fastsft
