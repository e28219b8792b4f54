#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "model/fp8_products.h"
#include "model/layout.h"
#include "model/model.h"

namespace fastsft {

// The weights of a block's linear layers in 8 bits, kept from one product to the next until they
// change. So a step quantises a trained weight once, and no step quantises a frozen weight, however
// many micro-batches, tiles and recomputations multiply by it. Backward has a copy of its own,
// which is transposed and may have other scales (fp8_products.h).
class Fp8Weights {
 public:
  // `backward`: backward goes through the block, too. `block` outlives the object.
  Fp8Weights(const Fp8Recipe& recipe, const BlockRefs& block, bool backward, at::Device device);

  // Return a weight of the block in 8 bits, and quantise it unless that is done. `weights`: as the
  // block has them now.
  Fp8Matrix forward(const ParamRef& weight, const PlaceWeights& weights);
  Fp8Matrix backward(const ParamRef& weight, const PlaceWeights& weights);

  void forget(ChangedWeights which);

  int64_t nbytes() const { return static_cast<int64_t>(memory_.nbytes()); }
  static int64_t plan(const BlockRefs& block, bool backward);
  // Returns the bytes of all blocks' copies.
  static int64_t plan(const ModelConfig& config, const DecoderLayout& layout,
                      const Fp8Recipe& recipe);

 private:
  struct Copy {
    Fp8Matrix matrix;
    bool is_made = false;
  };
  struct Linear {
    const ParamRef* weight;
    Copy forward, backward;
  };
  Linear& find(const ParamRef& weight);

  Fp8Recipe recipe_;
  at::Tensor memory_;
  std::array<Linear, 4> linears_;
};

}  // namespace fastsft
