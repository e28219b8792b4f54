#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/state_dict_order.h"
#include "storage/safetensors_writer.h"
#include "storage/shard_plan.h"
#include "storage/staged_files.h"

namespace fastsft {

struct SaveOptions {
  DType dtype = DType::kF32;                 // F32, BF16 or F16
  uint64_t max_shard_bytes = 5'000'000'000;  // of data, decimal
};

// The weight files of a Hugging Face directory, written tensor after tensor in the given order. The
// directory keeps its old files until `commit`.
class ModelWriter {
 public:
  ModelWriter(FileSystem& file_system, std::string directory, std::vector<TensorPlace> places,
              const SaveOptions& options);

  // The next tensor, converted from fp32.
  void write(std::span<const float> values);
  // Reads back and compares every file, then puts them in place and removes weight files of an
  // earlier save. Durable on return; the digests include the index.
  std::vector<FileDigest> commit();

 private:
  void check_written() const;
  void write_index();
  void remove(const std::vector<std::string>& names);

  FileSystem& file_system_;
  std::string directory_;
  std::vector<TensorPlace> places_;
  SaveOptions options_;
  std::vector<PlannedShard> shards_;
  std::vector<size_t> shard_of_;  // of each tensor
  std::map<size_t, std::unique_ptr<SafetensorsWriter>> open_;
  StagedFiles staged_;
  std::vector<std::string> paths_;  // temporary, of each shard
  std::vector<FileDigest> digests_;
  size_t next_ = 0;
};

}  // namespace fastsft
