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
  std::vector<size_t> tensors;  // indices into the tensors given to `plan_shards`
};

// Splits a state dict into files as transformers does (docs/spec/trainer_semantics.md, section 20).
// Files are filled greedily in the tensors' order. A tensor above the limit gets a file of
// its own, placed before the file that is being filled. A single file is called
// "model.safetensors", several are called "model-00001-of-0000n.safetensors".
std::vector<PlannedShard> plan_shards(const std::vector<SizedTensor>& tensors, uint64_t max_bytes);

// The weight files of a Hugging Face directory, split as transformers splits a state dict. The
// caller chooses the order in which tensors are written, because data may have any order inside a
// file. The directory keeps its old files until `commit`.
class WeightFiles {
 public:
  // `state_dict`: all tensors, in the order that decides the split. `order`: indices of the tensors
  // in the order in which they are written. Throws std::invalid_argument if `order` is no
  // permutation, or if a tensor would begin at an offset that is no multiple of its element size,
  // which the safetensors library cannot read.
  WeightFiles(FileSystem& file_system, std::string directory, std::vector<TensorSpec> state_dict,
              std::vector<size_t> order, uint64_t max_shard_bytes);

  // Writes the next tensor of `order`, whole. Throws std::invalid_argument if the size is wrong.
  void write(std::span<const std::byte> bytes);
  // Reads every file back and compares it, renames the files to their final names, and removes
  // weight files of an earlier save. Durable on return. The digests include the index, which
  // contains `total_parameters`.
  std::vector<FileDigest> commit(uint64_t total_parameters);
  // Removes all files written since the last commit.
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
  std::vector<size_t> shard_of_;  // file index for each tensor
  std::map<size_t, std::unique_ptr<SafetensorsWriter>> open_;
  StagedFiles staged_;
  std::vector<std::string> paths_;  // temporary path for each file
  std::vector<size_t> missing_;     // how many tensors each file still lacks
  std::vector<FileDigest> digests_;
  size_t next_ = 0;  // the next tensor's position in `order_`
};

}  // namespace fastsft
