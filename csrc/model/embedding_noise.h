#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fastsft {

// NEFTune noise on the embeddings in training: a uniform random number from [-magnitude, magnitude)
// is added to every value. `seed` determines all numbers.
struct EmbeddingNoise {
  double magnitude = 0;  // 0: no noise
  uint64_t seed = 0;

  // Returns the noise for micro-batch `index` from a step's noise.
  EmbeddingNoise of_micro_batch(size_t index) const;
};

inline constexpr int64_t kNoiseRows = 256;  // rows of noise that are drawn at a time

// Adds the noise to `rows` [tokens, hidden] in place, on the current stream. torch's generator of
// the device, seeded by noise.seed, fills `scratch` [rows, hidden] float32 block by block.
void add_embedding_noise(const EmbeddingNoise& noise, const at::Tensor& rows,
                         const at::Tensor& scratch);

}  // namespace fastsft
