#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fastsft {

struct SizedTensor {
  std::string name;
  uint64_t bytes = 0;
};

struct PlannedShard {
  std::string file_name;
  std::vector<size_t> tensors;  // indices into what was planned
};

// How transformers splits a state dict (docs/spec/trainer_semantics.md, section 20): greedy in
// order; a tensor above the limit gets a shard of its own, placed before the one still being
// filled. One shard is "model.safetensors", several "model-00001-of-0000n.safetensors".
std::vector<PlannedShard> plan_shards(const std::vector<SizedTensor>& tensors, uint64_t max_bytes);

}  // namespace fastsft
