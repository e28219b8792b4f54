#include "checkpoint/model_writer.h"

#include <algorithm>

#include "checkpoint/float_conversion.h"
#include "checkpoint/model_ranges.h"
#include "core/error.h"
#include "storage/model_index.h"
#include "storage/safetensors_reader.h"

namespace fastsft {

ModelWriter::ModelWriter(FileSystem& file_system, std::string directory, ModelFilePlan plan)
    : file_system_(file_system),
      directory_(std::move(directory)),
      plan_(std::move(plan)),
      staged_(file_system, directory_) {
  for (size_t i = 0; i < plan_.files.size(); ++i) {
    for (const auto& tensor : plan_.files[i].tensors) file_of_[tensor.spec.name] = i;
    paths_.push_back(staged_.stage(plan_.files[i].name));
    open_[i] = std::make_unique<ChecksummedFile>(file_system_, paths_.back());
    open_[i]->write(plan_.files[i].prefix);
  }
}

void ModelWriter::write(const ParamSlot& slot, std::span<const float> values) {
  FASTSFT_ASSERT(static_cast<int64_t>(values.size()) == slot.numel(), slot.name);
  const size_t i = file_of_.at(slot.name);
  ChecksummedFile& file = *open_.at(i);
  try {
    file.write(write_floats(plan_.options.dtype, values));
  } catch (const std::invalid_argument& error) {
    throw_invalid("saving ", slot.name, ": ", error.what());
  }
  if (file.size() < plan_.files[i].size) return;
  digests_.push_back(file.finish());
  digests_.back().name = plan_.files[i].name;
  open_.erase(i);
}

// A file that does not read back as what was written is a failed save, not a warning.
void ModelWriter::check_written() const {
  FASTSFT_ASSERT(open_.empty() && digests_.size() == plan_.files.size());
  for (size_t i = 0; i < plan_.files.size(); ++i) {
    check_header(SafetensorsReader(paths_[i]), plan_.files[i]);
    FileDigest digest = digest_file(paths_[i]);
    digest.name = plan_.files[i].name;
    if (std::find(digests_.begin(), digests_.end(), digest) == digests_.end()) {
      throw_runtime(paths_[i], ": reads back differently from what was written");
    }
  }
}

void ModelWriter::write_index() {
  ChecksummedFile file(file_system_, staged_.stage(kWeightsIndex));
  file.write(plan_.index);
  digests_.push_back(file.finish());
  digests_.back().name = kWeightsIndex;
}

void ModelWriter::remove(const std::vector<std::string>& names) {
  for (const auto& name : names) {
    const std::string path = join_path(directory_, name);
    if (file_system_.exists(path)) file_system_.remove_file(path);
  }
}

std::vector<FileDigest> ModelWriter::commit() {
  check_written();
  std::vector<std::string> keep;
  for (const auto& file : plan_.files) keep.push_back(file.name);
  if (!plan_.index.empty()) {
    write_index();
    keep.push_back(kWeightsIndex);
    // A crash between the renames must leave no way into a mixture of old and new files.
    remove({kSingleWeights, kWeightsIndex});
  }
  staged_.commit();
  remove(stale_weight_files(file_system_, directory_, keep));
  return digests_;
}

}  // namespace fastsft
