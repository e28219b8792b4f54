#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/config.h"
#include "model/layout.h"
#include "model/rope_table.h"
#include "shard/unit_state.h"

namespace fastsft {

// A decoder-only language model that continues one text. Weights are whole, in `dtype` on
// `device`; keys and values of the tokens read so far are kept, so that each is computed once.
class TextDecoder {
 public:
  // The weights are not set: states() is to be filled (checkpoint/model_loader.h).
  TextDecoder(const ModelConfig& config, at::ScalarType dtype, at::Device device);

  // The whole units, `master` being the weights in `dtype`.
  std::span<UnitState> states() { return states_; }

  // Number of tokens read.
  int64_t length() const { return length_; }
  // Forgets all but the first `length` tokens. std::invalid_argument when there are fewer.
  void truncate(int64_t length);
  // Reads `ids`, at least one, after those before. Returns the logits [vocab_size] float32 of the
  // token that follows. std::invalid_argument for an id outside the vocabulary.
  at::Tensor read(std::span<const int64_t> ids);

 private:
  struct Cache {
    at::Tensor keys, values;  // [num_key_value_heads, capacity, head_dim]
  };

  void reserve(int64_t positions);
  at::Tensor read_piece(std::span<const int64_t> ids);
  // Adds what attention or the MLP gives, through its norm if it has one.
  void add_branch(const std::optional<ParamRef>& norm_ref, const at::Tensor& weights,
                  const at::Tensor& branch, const at::Tensor& stream) const;
  void block(int64_t layer, const at::Tensor& stream, const at::Tensor& positions);
  at::Tensor attend(int64_t layer, const BlockRefs& refs, const at::Tensor& qkv);
  void mlp(const BlockRefs& refs, const at::Tensor& weights, const at::Tensor& stream);
  at::Tensor norm(const at::Tensor& x, const at::Tensor& weight) const;

  ModelConfig config_;
  at::ScalarType dtype_;
  at::Device device_;
  DecoderLayout layout_;
  HeadRefs head_;
  std::vector<BlockRefs> blocks_;
  std::vector<UnitState> states_;
  std::vector<Cache> caches_;
  RopeTables rope_;
  int64_t capacity_ = 0;
  int64_t length_ = 0;
};

}  // namespace fastsft
