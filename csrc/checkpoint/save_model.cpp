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

std::vector<TensorSpec> specs_of(const std::vector<TensorPlace>& places, DType dtype) {
  std::vector<TensorSpec> specs;
  for (const auto& place : places) specs.push_back(spec_of(place, dtype));
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

uint64_t num_parameters(const std::vector<TensorPlace>& places) {
  return std::accumulate(places.begin(), places.end(), uint64_t{0},
                         [](uint64_t sum, const TensorPlace& place) {
                           return sum + static_cast<uint64_t>(place.slot->numel());
                         });
}

}  // namespace

std::vector<FileDigest> save_model(Strategy& strategy, Communicator& all,
                                   const std::string& directory, const SaveOptions& options,
                                   const Writers& writers) {
  const std::span<const UnitState> units = strategy.states();
  FASTSFT_ASSERT(!units.empty());
  const bool writes = writers.writes(all);
  const auto places = state_dict_order(units);
  Agreement agreement;
  std::optional<WeightFiles> files;
  std::vector<FileDigest> digests;
  if (writes) {
    agreement.attempt([&] {
      std::vector<size_t> order(places.size());
      std::iota(order.begin(), order.end(), size_t{0});
      files.emplace(posix_file_system(), directory, specs_of(places, options.dtype),
                    std::move(order), options.max_shard_bytes);
    });
  }
  at::Tensor unit;
  for (size_t i = 0; i < places.size() && writers.gathers(strategy); ++i) {
    if (i == 0 || places[i].unit != places[i - 1].unit) {
      unit = gather_master(units[places[i].unit], strategy.shards(), strategy.device(),
                           writers.readers());
    }
    if (writes) {
      const ParamSlot& slot = *places[i].slot;
      agreement.attempt(
          [&] { write_tensor(*files, slot, elements_of(unit, slot), options.dtype); });
    }
  }
  if (writes) agreement.attempt([&] { digests = files->commit(num_parameters(places)); });
  agreement.settle(all, strategy.device(), "saving the model to " + directory);
  return digests;
}

}  // namespace fastsft
