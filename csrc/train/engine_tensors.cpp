// Tensors of the model by name, out of the units.

#include <ATen/ops/empty.h>

#include "shard/master_weights.h"
#include "train/engine.h"

namespace fastsft {

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

}  // namespace fastsft
