#include "storage/weight_files.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "core/error.h"
#include "storage/model_index.h"
#include "storage/safetensors_reader.h"

namespace fastsft {
namespace {

std::vector<PlannedShard> plan(const std::vector<TensorSpec>& specs, uint64_t max_shard_bytes) {
  std::vector<SizedTensor> sizes;
  for (const auto& spec : specs) sizes.push_back({spec.name, spec.bytes()});
  return plan_shards(sizes, max_shard_bytes);
}

void check_order(const std::vector<size_t>& order, size_t count) {
  std::vector<size_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  std::vector<size_t> expected(count);
  std::iota(expected.begin(), expected.end(), size_t{0});
  require(sorted == expected, "order: expected each of ", count, " tensors once");
}

void check_alignment(const std::vector<TensorSpec>& specs, const std::string& file) {
  uint64_t begin = 0;
  for (const auto& spec : specs) {
    const auto bits = static_cast<uint64_t>(dtype_bits(spec.dtype));
    require(begin * 8 % bits == 0, file, ": \"", spec.name, "\" would begin at byte ", begin,
            ", no multiple of its element's size; write larger elements first");
    begin += spec.bytes();
  }
}

}  // namespace

WeightFiles::WeightFiles(FileSystem& file_system, std::string directory,
                         std::vector<TensorSpec> state_dict, std::vector<size_t> order,
                         uint64_t max_shard_bytes)
    : file_system_(file_system),
      directory_(std::move(directory)),
      state_dict_(std::move(state_dict)),
      order_(std::move(order)),
      shards_(plan(state_dict_, max_shard_bytes)),
      shard_of_(state_dict_.size()),
      staged_(file_system, directory_) {
  require(!state_dict_.empty(), directory_, ": expected tensors to save, got none");
  check_order(order_, state_dict_.size());
  for (size_t shard = 0; shard < shards_.size(); ++shard) {
    for (const size_t i : shards_[shard].tensors) shard_of_[i] = shard;
  }
  std::vector<std::vector<size_t>> in_order(shards_.size());
  for (const size_t i : order_) in_order[shard_of_[i]].push_back(i);
  for (size_t shard = 0; shard < shards_.size(); ++shard) {
    missing_.push_back(in_order[shard].size());
    open(shard, in_order[shard]);
  }
}

void WeightFiles::open(size_t shard, const std::vector<size_t>& tensors) {
  std::vector<TensorSpec> specs;
  for (const size_t i : tensors) specs.push_back(state_dict_[i]);
  check_alignment(specs, shards_[shard].file_name);
  paths_.push_back(staged_.stage(shards_[shard].file_name));
  open_[shard] = std::make_unique<SafetensorsWriter>(file_system_, paths_.back(), std::move(specs));
}

void WeightFiles::write(std::span<const std::byte> bytes) {
  require(next_ < order_.size(), directory_, ": all ", order_.size(), " tensors are written");
  const TensorSpec& spec = state_dict_[order_[next_]];
  require(bytes.size() == spec.bytes(), "saving ", spec.name, ": expected ", spec.bytes(),
          " bytes, got ", bytes.size());
  const size_t shard = shard_of_[order_[next_++]];
  FASTSFT_ASSERT(open_.contains(shard), "written after discard");
  open_.at(shard)->write(bytes);
  if (--missing_[shard] > 0) return;
  digests_.push_back(open_.at(shard)->finish());
  digests_.back().name = shards_[shard].file_name;
  open_.erase(shard);
}

void WeightFiles::check_file(size_t shard) const {
  const SafetensorsReader reader(paths_[shard]);
  bool same = reader.tensors().size() == shards_[shard].tensors.size();
  for (const size_t i : shards_[shard].tensors) {
    const TensorSpec& spec = state_dict_[i];
    const TensorEntry* found = reader.find(spec.name);
    same = same && found && found->dtype == spec.dtype && found->shape == spec.shape;
  }
  FileDigest digest = digest_file(paths_[shard]);
  digest.name = shards_[shard].file_name;
  same = same && std::find(digests_.begin(), digests_.end(), digest) != digests_.end();
  // A file that reads back differently makes the save fail; a warning would not do.
  if (!same)
    throw FileError(concat(paths_[shard], ": reads back differently from what was written"));
}

void WeightFiles::write_index(uint64_t total_parameters) {
  ModelIndex index;
  index.total_parameters = total_parameters;
  for (size_t i = 0; i < state_dict_.size(); ++i) {
    index.weight_map[state_dict_[i].name] = shards_[shard_of_[i]].file_name;
    index.total_size += state_dict_[i].bytes();
  }
  ChecksummedFile file(file_system_, staged_.stage(kWeightsIndex));
  file.write(model_index_json(index));
  digests_.push_back(file.finish());
  digests_.back().name = kWeightsIndex;
}

void WeightFiles::remove(const std::vector<std::string>& names) {
  for (const auto& name : names) {
    const std::string path = join_path(directory_, name);
    if (file_system_.exists(path)) file_system_.remove_file(path);
  }
}

std::vector<FileDigest> WeightFiles::commit(uint64_t total_parameters) {
  require(next_ == order_.size(), directory_, ": expected ", order_.size(), " tensors, got ",
          next_);
  for (size_t shard = 0; shard < shards_.size(); ++shard) check_file(shard);
  std::vector<std::string> keep;
  for (const auto& shard : shards_) keep.push_back(shard.file_name);
  if (shards_.size() > 1) {
    write_index(total_parameters);
    keep.emplace_back(kWeightsIndex);
    // The files that loaders open first are removed, so that a crash between the renames leaves no
    // loadable mixture of old and new files.
    remove({kSingleWeights, kWeightsIndex});
  }
  staged_.commit();
  remove(stale_weight_files(file_system_, directory_, keep));
  return digests_;
}

void WeightFiles::discard() noexcept {
  open_.clear();
  staged_.discard();
}

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
