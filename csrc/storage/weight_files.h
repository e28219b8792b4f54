#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "storage/safetensors_writer.h"
#include "storage/shard_plan.h"
#include "storage/staged_files.h"

namespace fastsft {

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
