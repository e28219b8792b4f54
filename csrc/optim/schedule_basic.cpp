#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "optim/schedule.h"

namespace fastsft {
namespace {

ScheduleFactor linear(const ScheduleRequest& request) {
  const int64_t warmup = request.warmup_steps, total = request.total_steps;
  return [=](int64_t step) {
    if (step < warmup) return linear_warmup(step, warmup);
    return std::max(0.0, static_cast<double>(total - step) /
                             static_cast<double>(std::max<int64_t>(1, total - warmup)));
  };
}

ScheduleFactor polynomial(const ScheduleRequest& request) {
  const int64_t warmup = request.warmup_steps, total = request.total_steps;
  const double start = request.learning_rate;
  const double end = request.number("lr_end", 1e-7), power = request.number("power", 1.0);
  require(start > end, "lr_scheduler_kwargs: expected lr_end below the learning rate ", start,
          ", got ", end);
  return [=](int64_t step) {
    if (step < warmup) return linear_warmup(step, warmup);
    // At its last step nothing remains, also when the warm-up takes every step.
    if (step >= total) return end / start;
    const double remaining =
        1 - static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
    return ((start - end) * std::pow(remaining, power) + end) / start;
  };
}

ScheduleFactor constant(const ScheduleRequest&) {
  return [](int64_t) { return 1.0; };
}

ScheduleFactor constant_with_warmup(const ScheduleRequest& request) {
  const int64_t warmup = request.warmup_steps;
  return [=](int64_t step) { return step < warmup ? linear_warmup(step, warmup) : 1.0; };
}

ScheduleFactor inverse_sqrt(const ScheduleRequest& request) {
  const int64_t warmup = request.warmup_steps;
  const int64_t timescale = warmup > 0 ? warmup : 10000;
  return [=](int64_t step) {
    if (step < warmup) return linear_warmup(step, warmup);
    return 1.0 / std::sqrt(static_cast<double>(step + timescale - warmup) /
                           static_cast<double>(timescale));
  };
}

[[maybe_unused]] const bool kScheduleBasicRegistered = [] {
  auto& registry = ScheduleRegistry::instance();
  registry.add("linear", {{}, linear});
  registry.add("polynomial", {{"lr_end", "power"}, polynomial});
  registry.add("constant", {{}, constant});
  registry.add("constant_with_warmup", {{}, constant_with_warmup});
  registry.add("inverse_sqrt", {{}, inverse_sqrt});
  return true;
}();

}  // namespace
}  // namespace fastsft
