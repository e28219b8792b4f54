#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/model_file_plan.h"
#include "storage/staged_files.h"

namespace fastsft {

// The weight files of a Hugging Face directory, written tensor after tensor in the order of the
// plan's places. The directory keeps its old files until `commit`.
class ModelWriter {
 public:
  ModelWriter(FileSystem& file_system, std::string directory, ModelFilePlan plan);

  // The next tensor, converted from fp32.
  void write(const ParamSlot& slot, std::span<const float> values);
  // Reads back and compares every file, then puts them in place and removes weight files of an
  // earlier save. Durable on return; the digests include the index.
  std::vector<FileDigest> commit();

 private:
  void check_written() const;
  void write_index();
  void remove(const std::vector<std::string>& names);

  FileSystem& file_system_;
  std::string directory_;
  ModelFilePlan plan_;
  std::map<std::string, size_t> file_of_;  // by tensor
  std::map<size_t, std::unique_ptr<ChecksummedFile>> open_;
  StagedFiles staged_;
  std::vector<std::string> paths_;  // temporary, of each file
  std::vector<FileDigest> digests_;
};

}  // namespace fastsft
