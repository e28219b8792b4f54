#include "checkpoint/save_model.h"

#include <optional>
#include <span>

#include "checkpoint/agreement.h"
#include "checkpoint/gather.h"
#include "core/error.h"

namespace fastsft {
namespace {

std::span<const float> elements_of(const at::Tensor& unit, const ParamSlot& slot) {
  return {unit.const_data_ptr<float>() + slot.offset, static_cast<size_t>(slot.numel())};
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
  std::optional<ModelWriter> writer;
  std::vector<FileDigest> digests;
  if (writes) {
    agreement.attempt(
        [&] { writer.emplace(posix_file_system(), directory, plan_model_files(places, options)); });
  }
  at::Tensor unit;
  for (size_t i = 0; i < places.size() && writers.gathers(strategy); ++i) {
    if (i == 0 || places[i].unit != places[i - 1].unit) {
      unit = gather_master(units[places[i].unit], strategy.shards(), strategy.device(),
                           writers.readers());
    }
    if (writes) {
      agreement.attempt(
          [&] { writer->write(*places[i].slot, elements_of(unit, *places[i].slot)); });
    }
  }
  if (writes) agreement.attempt([&] { digests = writer->commit(); });
  agreement.settle(all, strategy.device(), "saving the model to " + directory);
  return digests;
}

}  // namespace fastsft
