#include "checkpoint/model_writer.h"

#include <algorithm>

#include "checkpoint/float_conversion.h"
#include "core/error.h"
#include "storage/model_index.h"
#include "storage/safetensors_reader.h"

namespace fastsft {
namespace {

TensorSpec spec_of(const TensorPlace& place, DType dtype) {
  const auto& shape = place.slot->shape;
  return {place.slot->name, dtype, {shape.begin(), shape.end()}};
}

std::vector<PlannedShard> plan(const std::vector<TensorPlace>& places, const SaveOptions& options) {
  std::vector<SizedTensor> sizes;
  for (const auto& place : places) {
    sizes.push_back({place.slot->name, spec_of(place, options.dtype).bytes()});
  }
  return plan_shards(sizes, options.max_shard_bytes);
}

}  // namespace

ModelWriter::ModelWriter(FileSystem& file_system, std::string directory,
                         std::vector<TensorPlace> places, const SaveOptions& options)
    : file_system_(file_system),
      directory_(std::move(directory)),
      places_(std::move(places)),
      options_(options),
      shards_(plan(places_, options_)),
      shard_of_(places_.size()),
      staged_(file_system, directory_) {
  for (size_t shard = 0; shard < shards_.size(); ++shard) {
    std::vector<TensorSpec> specs;
    for (const size_t i : shards_[shard].tensors) {
      shard_of_[i] = shard;
      specs.push_back(spec_of(places_[i], options_.dtype));
    }
    paths_.push_back(staged_.stage(shards_[shard].file_name));
    open_[shard] =
        std::make_unique<SafetensorsWriter>(file_system_, paths_.back(), std::move(specs));
  }
}

void ModelWriter::write(std::span<const float> values) {
  FASTSFT_ASSERT(next_ < places_.size());
  const ParamSlot& slot = *places_[next_].slot;
  FASTSFT_ASSERT(static_cast<int64_t>(values.size()) == slot.numel(), slot.name);
  const size_t shard = shard_of_[next_++];
  SafetensorsWriter& writer = *open_.at(shard);
  try {
    writer.write(write_floats(options_.dtype, values));
  } catch (const std::invalid_argument& error) {
    throw_invalid("saving ", slot.name, ": ", error.what());
  }
  if (!writer.complete()) return;
  digests_.push_back(writer.finish());
  digests_.back().name = shards_[shard].file_name;
  open_.erase(shard);
}

// A file that does not read back as what was written is a failed save, not a warning.
void ModelWriter::check_written() const {
  FASTSFT_ASSERT(next_ == places_.size() && digests_.size() == shards_.size());
  for (size_t shard = 0; shard < shards_.size(); ++shard) {
    const SafetensorsReader reader(paths_[shard]);
    bool same = reader.tensors().size() == shards_[shard].tensors.size();
    for (const size_t i : shards_[shard].tensors) {
      const TensorSpec spec = spec_of(places_[i], options_.dtype);
      const TensorEntry* found = reader.find(spec.name);
      same = same && found && found->dtype == spec.dtype && found->shape == spec.shape;
    }
    FileDigest digest = digest_file(paths_[shard]);
    digest.name = shards_[shard].file_name;
    same = same && std::find(digests_.begin(), digests_.end(), digest) != digests_.end();
    if (!same) throw_runtime(paths_[shard], ": reads back differently from what was written");
  }
}

void ModelWriter::write_index() {
  ModelIndex index;
  for (size_t i = 0; i < places_.size(); ++i) {
    index.weight_map[places_[i].slot->name] = shards_[shard_of_[i]].file_name;
    index.total_parameters += static_cast<uint64_t>(places_[i].slot->numel());
    index.total_size += spec_of(places_[i], options_.dtype).bytes();
  }
  ChecksummedFile file(file_system_, staged_.stage(kWeightsIndex));
  file.write(model_index_json(index));
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
  for (const auto& shard : shards_) keep.push_back(shard.file_name);
  if (shards_.size() > 1) {
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
