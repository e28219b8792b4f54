// Engine methods that read and write whole tensors.

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "checkpoint/local_range.h"
#include "core/error.h"
#include "shard/unit_state.h"
#include "train/engine.h"

namespace fastsft {
namespace {

// Writes this rank's part of the tensor. Returns true if `states` contain the tensor.
bool set_in(const std::vector<UnitState>& states, const std::string& name,
            const at::Tensor& value) {
  for (const UnitState& state : states) {
    for (const auto& slot : state.unit->slots()) {
      if (slot.name != name) continue;
      require(value.sizes() == at::IntArrayRef(slot.shape), name, " has shape ", value.sizes(),
              ", the model expects ", at::IntArrayRef(slot.shape));
      if (state.nf4 && slot.linear) {
        store_in_four_bits(state, slot.offset, value);
        return true;
      }
      const int64_t begin = std::max(slot.offset, state.begin);
      const int64_t end = std::min(slot.offset + slot.numel(), state.end);
      if (begin >= end) return true;
      const at::Tensor part = value.reshape({-1}).narrow(0, begin - slot.offset, end - begin);
      write_master(state, begin - state.begin, part);
      return true;
    }
  }
  return false;
}

}  // namespace

std::map<std::string, at::Tensor> Engine::gather_slots(bool gradients, bool with_held) {
  await_states();
  std::map<std::string, at::Tensor> result;
  for (size_t i = 0; i < units().size(); ++i) {
    const at::Tensor held =
        gradients ? strategy_->gradients().local(i) : read_master(strategy_->states()[i]);
    gather_slots_of(units()[i], held, !strategy_->replicated(), with_held, result);
  }
  return result;
}

void Engine::gather_slots_of(const ParamUnit& unit, const at::Tensor& held, bool sharded,
                             bool with_held, std::map<std::string, at::Tensor>& to) {
  const at::Tensor range = held.to(options_.device);
  at::Tensor whole = range;
  if (sharded) {
    Communicator& shards = strategy_->shards();
    whole = at::empty({range.numel() * shards.world_size()}, range.options());
    shards.all_gather(whole, range, unit.name())->wait();
  }
  whole = whole.cpu().to(at::kFloat);
  for (const auto& slot : unit.slots()) {
    if (slot.held && !with_held) continue;
    to[slot.name] = whole.narrow(0, slot.offset, slot.numel()).view(slot.shape).clone();
  }
}

void Engine::set_parameter(const std::string& name, const at::Tensor& value) {
  const c10::NoGradGuard no_grad;
  const c10::OptionalDeviceGuard device_guard(
      options_.device.is_cpu() ? std::nullopt : std::optional<at::Device>(options_.device));
  await_states();
  require(
      set_in(strategy_->states(), name, value) || set_in(strategy_->frozen().states(), name, value),
      "the model has no tensor \"", name, "\"");
  model_->weights_changed(ChangedWeights::kAll);  // a frozen weight needs no `publish`
}

}  // namespace fastsft
