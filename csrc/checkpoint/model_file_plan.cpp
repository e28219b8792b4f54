#include "checkpoint/model_file_plan.h"

#include <functional>
#include <numeric>
#include <tuple>

#include "storage/model_index.h"
#include "storage/weight_files.h"

namespace fastsft {
namespace {

uint64_t count_of(const TensorSpec& spec) {
  return std::accumulate(spec.shape.begin(), spec.shape.end(), uint64_t{1}, std::multiplies<>());
}

PlannedFile plan_file(const PlannedShard& shard, const std::vector<PlannedTensor>& tensors) {
  PlannedFile file{.name = shard.file_name, .prefix = {}, .tensors = {}};
  std::vector<TensorSpec> specs;
  for (const size_t i : shard.tensors) specs.push_back(tensors[i].spec);
  std::vector<TensorSpec> ordered;
  for (const size_t k : aligned_order(specs)) {
    file.tensors.push_back(tensors[shard.tensors[k]]);
    ordered.push_back(specs[k]);
  }
  file.prefix = safetensors_prefix(ordered);
  file.size = file.prefix.size();
  for (auto& tensor : file.tensors) {
    tensor.offset = file.size;
    file.size += tensor.spec.bytes();
  }
  return file;
}

std::string index_of(const std::vector<PlannedFile>& files) {
  ModelIndex index;
  for (const auto& file : files) {
    for (const auto& tensor : file.tensors) {
      index.weight_map[tensor.spec.name] = file.name;
      index.total_parameters += count_of(tensor.spec);
      index.total_size += tensor.spec.bytes();
    }
  }
  return model_index_json(index);
}

}  // namespace

std::vector<PlannedTensor> tensors_to_save(const std::vector<TensorPlace>& places,
                                           const SaveOptions& options) {
  std::vector<PlannedTensor> tensors;
  for (const auto& place : places) {
    const auto& [name, shape] = std::tie(place.slot->name, place.slot->shape);
    const DType dtype = options.form.dtype_of(name, options.dtype);
    tensors.push_back({place, {}, {name, dtype, {shape.begin(), shape.end()}}});
  }
  for (const auto& each : options.form.carried) tensors.push_back({{}, each.bytes, each.spec});
  return tensors;
}

uint64_t ModelFilePlan::bytes() const {
  uint64_t sum = index.size();
  for (const auto& file : files) sum += file.size;
  return sum;
}

ModelFilePlan plan_model_files(const std::vector<TensorPlace>& places, const SaveOptions& options) {
  const auto tensors = tensors_to_save(places, options);
  std::vector<SizedTensor> sizes;
  for (const auto& tensor : tensors) sizes.push_back({tensor.spec.name, tensor.spec.bytes()});
  ModelFilePlan plan{options, {}, {}};
  for (const auto& shard : plan_shards(sizes, options.max_shard_bytes)) {
    plan.files.push_back(plan_file(shard, tensors));
  }
  if (plan.files.size() > 1) plan.index = index_of(plan.files);
  return plan;
}

}  // namespace fastsft
