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

// A decoder-only language model that continues a text. Weights are whole, in `dtype` on `device`.
// Keys and values of earlier tokens are cached.
class TextDecoder {
 public:
  // Makes a decoder without weights; the caller fills states() (checkpoint/model_loader.h).
  TextDecoder(const ModelConfig& config, at::ScalarType dtype, at::Device device);

  // Returns the whole units; `master` has the weights in `dtype`.
  std::span<UnitState> states() { return states_; }

  // Returns the number of tokens read.
  int64_t length() const { return length_; }
  // Forgets all tokens after the first `length`. Throws std::invalid_argument if there are fewer.
  void truncate(int64_t length);
  // Reads `ids`, at least one, after the earlier tokens. Returns the next token's logits
  // [vocab_size] float32. Throws std::invalid_argument for an id outside the vocabulary.
  at::Tensor read(std::span<const int64_t> ids);

 private:
  struct Cache {
    at::Tensor keys, values;  // [num_key_value_heads, capacity, head_dim]
  };

  void reserve(int64_t positions);
  at::Tensor read_piece(std::span<const int64_t> ids);
  // Adds the output of attention or the MLP to `stream`, normalised first if there is a norm for
  // it.
  void add_branch(const std::optional<ParamRef>& norm_ref, const at::Tensor& weights,
                  const at::Tensor& branch, const at::Tensor& stream) const;
  void block(int64_t layer, const at::Tensor& stream, const at::Tensor& positions);
  at::Tensor attend(int64_t layer, const BlockRefs& refs, const at::Tensor& qkv);
  void mixture(const BlockRefs& refs, const at::Tensor& flat, const at::Tensor& stream) const;
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
