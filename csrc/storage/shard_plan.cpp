#include "storage/shard_plan.h"

#include <cstdio>

#include "core/error.h"

namespace fastsft {
namespace {

std::string shard_name(size_t index, size_t count) {
  if (count == 1) return "model.safetensors";
  char text[64];
  std::snprintf(text, sizeof text, "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return text;
}

}  // namespace

std::vector<PlannedShard> plan_shards(const std::vector<SizedTensor>& tensors, uint64_t max_bytes) {
  require(max_bytes > 0, "max_shard_size: expected more than 0 bytes");
  std::vector<PlannedShard> shards;
  PlannedShard current;
  uint64_t filled = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t bytes = tensors[i].bytes;
    if (bytes > max_bytes) {
      shards.push_back({"", {i}});
      continue;
    }
    if (filled + bytes > max_bytes) {
      shards.push_back(std::move(current));
      current = {};
      filled = 0;
    }
    current.tensors.push_back(i);
    filled += bytes;
  }
  if (!current.tensors.empty()) shards.push_back(std::move(current));
  for (size_t i = 0; i < shards.size(); ++i) shards[i].file_name = shard_name(i, shards.size());
  return shards;
}

}  // namespace fastsft
