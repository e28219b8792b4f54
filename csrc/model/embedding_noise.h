#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fastsft {

// Noise on the embeddings in training (NEFTune): every value gets a number from the uniform
// distribution over [-magnitude, magnitude). `seed` decides all of them.
struct EmbeddingNoise {
  double magnitude = 0;  // 0: none
  uint64_t seed = 0;

  // Of micro-batch `index` of the step that this is the noise of.
  EmbeddingNoise of_micro_batch(size_t index) const;
};

inline constexpr int64_t kNoiseRows = 256;  // drawn at a time

// Adds the noise to `rows` [tokens, hidden] in place, in blocks of `scratch` [rows, hidden]
// float32, on the current stream. torch's generator of the device, seeded by noise.seed, fills
// block by block.
void add_embedding_noise(const EmbeddingNoise& noise, const at::Tensor& rows,
                         const at::Tensor& scratch);

}  // namespace fastsft
