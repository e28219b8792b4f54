// Counts the operations that are launched next to a collective, before anything waits for it.
#include "state.h"

namespace fake_device {
namespace {

// A collective that no other stream waits for yet, and the operations launched before it.
struct UnderWay {
  std::string name;
  size_t stream;
  uint64_t clock, launched;
};

}  // namespace

void count_overlap(const Operation& operation) {
  static auto* const under_way = new std::vector<UnderWay>;
  static uint64_t launched = 0;
  if (!state().counts) return;
  const auto own = static_cast<size_t>(operation.stream);
  if (operation.kind == Operation::kWork) {
    const bool is_collective = operation.name.starts_with("nccl");
    if (!is_collective) ++launched;
    if (is_collective) {
      under_way->push_back({operation.name, own, operation.clock[own], launched});
    }
  }
  if (operation.kind != Operation::kWait) return;
  std::erase_if(*under_way, [&](const UnderWay& each) {
    const VectorClock& known = operation.clock;
    if (each.stream == own || known.size() <= each.stream || known[each.stream] < each.clock) {
      return false;
    }
    count("next to " + each.name, launched - each.launched);
    return true;
  });
}

}  // namespace fake_device
