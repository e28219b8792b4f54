#include "checkpoint/save_model.h"

#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "checkpoint/agreement.h"
#include "checkpoint/float_conversion.h"
#include "checkpoint/gather.h"
#include "core/error.h"
#include "storage/weight_files.h"

namespace fastsft {
namespace {

std::span<const float> elements_of(const at::Tensor& unit, const ParamSlot& slot) {
  return {unit.const_data_ptr<float>() + slot.offset, static_cast<size_t>(slot.numel())};
}

std::vector<TensorSpec> specs_of(const std::vector<PlannedTensor>& tensors) {
  std::vector<TensorSpec> specs;
  for (const auto& tensor : tensors) specs.push_back(tensor.spec);
  return specs;
}

void write_tensor(WeightFiles& files, const ParamSlot& slot, std::span<const float> values,
                  DType dtype) {
  std::vector<std::byte> bytes;
  try {
    bytes = write_floats(dtype, values);
  } catch (const std::invalid_argument& error) {
    throw_invalid("saving ", slot.name, ": ", error.what());
  }
  files.write(bytes);
}

uint64_t num_parameters(const std::vector<TensorSpec>& specs) {
  return std::accumulate(
      specs.begin(), specs.end(), uint64_t{0}, [](uint64_t sum, const TensorSpec& spec) {
        return sum + spec.bytes() * 8 / static_cast<uint64_t>(dtype_bits(spec.dtype));
      });
}

}  // namespace

std::vector<FileDigest> save_model(Strategy& strategy, Communicator& all,
                                   const std::string& directory, const SaveOptions& options,
                                   const Writers& writers) {
  const std::span<const UnitState> units = strategy.states();
  FASTSFT_ASSERT(!units.empty());
  const bool writes = writers.writes(all);
  const auto tensors = tensors_to_save(state_dict_order(units), options);
  const auto specs = specs_of(tensors);
  const auto order = aligned_order(specs);
  Agreement agreement;
  std::optional<WeightFiles> files;
  std::vector<FileDigest> digests;
  if (writes) {
    agreement.attempt([&] {
      files.emplace(posix_file_system(), directory, specs, order, options.max_shard_bytes);
    });
  }
  at::Tensor unit;
  std::optional<size_t> gathered;
  for (const size_t i : order) {
    const PlannedTensor& tensor = tensors[i];
    if (tensor.carried) {
      if (writes) agreement.attempt([&] { files->write(bytes_of({tensor.spec, tensor.carried})); });
      continue;
    }
    if (!writers.gathers(strategy)) continue;
    if (gathered != tensor.place.unit) {
      unit = gather_master(units[tensor.place.unit], strategy.shards(), strategy.device(),
                           writers.readers());
      gathered = tensor.place.unit;
    }
    if (writes) {
      const ParamSlot& slot = *tensor.place.slot;
      agreement.attempt(
          [&] { write_tensor(*files, slot, elements_of(unit, slot), tensor.spec.dtype); });
    }
  }
  if (writes) agreement.attempt([&] { digests = files->commit(num_parameters(specs)); });
  agreement.settle(all, strategy.device(), "saving the model to " + directory);
  return digests;
}

}  // namespace fastsft
