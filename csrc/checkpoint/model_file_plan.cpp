#include "checkpoint/model_file_plan.h"

#include "storage/model_index.h"
#include "storage/shard_plan.h"

namespace fastsft {
namespace {

PlannedFile plan_file(const PlannedShard& shard, const std::vector<TensorPlace>& places,
                      DType dtype) {
  PlannedFile file{.name = shard.file_name, .prefix = {}, .tensors = {}};
  std::vector<TensorSpec> specs;
  for (const size_t i : shard.tensors) specs.push_back(spec_of(places[i], dtype));
  file.prefix = safetensors_prefix(specs);
  file.size = file.prefix.size();
  for (size_t k = 0; k < specs.size(); ++k) {
    file.tensors.push_back({places[shard.tensors[k]], specs[k], file.size});
    file.size += specs[k].bytes();
  }
  return file;
}

std::string index_of(const std::vector<PlannedFile>& files) {
  ModelIndex index;
  for (const auto& file : files) {
    for (const auto& tensor : file.tensors) {
      index.weight_map[tensor.spec.name] = file.name;
      index.total_parameters += static_cast<uint64_t>(tensor.place.slot->numel());
      index.total_size += tensor.spec.bytes();
    }
  }
  return model_index_json(index);
}

}  // namespace

TensorSpec spec_of(const TensorPlace& place, DType dtype) {
  const auto& shape = place.slot->shape;
  return {place.slot->name, dtype, {shape.begin(), shape.end()}};
}

uint64_t ModelFilePlan::bytes() const {
  uint64_t sum = index.size();
  for (const auto& file : files) sum += file.size;
  return sum;
}

ModelFilePlan plan_model_files(const std::vector<TensorPlace>& places, const SaveOptions& options) {
  std::vector<SizedTensor> sizes;
  for (const auto& place : places) {
    sizes.push_back({place.slot->name, spec_of(place, options.dtype).bytes()});
  }
  ModelFilePlan plan{options, {}, {}};
  for (const auto& shard : plan_shards(sizes, options.max_shard_bytes)) {
    plan.files.push_back(plan_file(shard, places, options.dtype));
  }
  if (plan.files.size() > 1) plan.index = index_of(plan.files);
  return plan;
}

}  // namespace fastsft
