#include "model/embedding_noise.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>

#include <algorithm>

namespace fastsft {
namespace {

// Mixes all bits into the low 32 (splitmix64), since the CPU's generator reads
// no others of its seed.
uint64_t mixed(uint64_t value) {
  value += 0x9e3779b97f4a7c15ull;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

}  // namespace

EmbeddingNoise EmbeddingNoise::of_micro_batch(size_t index) const {
  return {magnitude, mixed(mixed(seed) + index)};
}

void add_embedding_noise(const EmbeddingNoise& noise, const at::Tensor& rows,
                         const at::Tensor& scratch) {
  at::Generator generator = at::globalContext().defaultGenerator(rows.device()).clone();
  generator.set_current_seed(noise.seed);
  const int64_t step = scratch.size(0);
  for (int64_t first = 0; first < rows.size(0); first += step) {
    const int64_t count = std::min(step, rows.size(0) - first);
    const at::Tensor drawn = scratch.narrow(0, 0, count);
    drawn.uniform_(-noise.magnitude, noise.magnitude, generator);
    rows.narrow(0, first, count).add_(drawn);
  }
}

}  // namespace fastsft
