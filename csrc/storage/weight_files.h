#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "storage/safetensors_writer.h"
#include "storage/staged_files.h"

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

// The weight files of a Hugging Face directory, split as transformers splits a state dict and
// written tensor after tensor, in an order of the caller's own: a file's data may be in any
// order. The directory keeps its old files until `commit`.
class WeightFiles {
 public:
  // `state_dict`: every tensor, in the order that decides the split. `order`: its indices in the
  // order of writing. std::invalid_argument when that is no permutation, or a tensor would not
  // begin at a multiple of its element's size, which the safetensors library cannot read.
  WeightFiles(FileSystem& file_system, std::string directory, std::vector<TensorSpec> state_dict,
              std::vector<size_t> order, uint64_t max_shard_bytes);

  // The next tensor of `order`, whole. std::invalid_argument when its size is another.
  void write(std::span<const std::byte> bytes);
  // Reads back and compares every file, then puts them in place and removes weight files of an
  // earlier save. Durable on return; the digests include the index, which says
  // `total_parameters`.
  std::vector<FileDigest> commit(uint64_t total_parameters);
  // Gives up: nothing is left of what was written since the last commit.
  void discard() noexcept;

 private:
  void open(size_t shard, const std::vector<size_t>& tensors);
  void check_file(size_t shard) const;
  void write_index(uint64_t total_parameters);
  void remove(const std::vector<std::string>& names);

  FileSystem& file_system_;
  std::string directory_;
  std::vector<TensorSpec> state_dict_;
  std::vector<size_t> order_;
  std::vector<PlannedShard> shards_;
  std::vector<size_t> shard_of_;  // of each tensor
  std::map<size_t, std::unique_ptr<SafetensorsWriter>> open_;
  StagedFiles staged_;
  std::vector<std::string> paths_;  // temporary, of each shard
  std::vector<size_t> missing_;     // tensors, of each shard
  std::vector<FileDigest> digests_;
  size_t next_ = 0;  // in `order_`
};

}  // namespace fastsft
