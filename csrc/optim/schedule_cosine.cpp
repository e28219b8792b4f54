#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"
#include "optim/schedule.h"

namespace fastsft {
namespace {

double half_cosine(double cycles, double progress) {
  return 0.5 * (1.0 + std::cos(std::numbers::pi * cycles * 2.0 * progress));
}

double above_floor(double factor, double floor) {
  return std::max(0.0, factor * (1 - floor) + floor);
}

double share(double done, int64_t warmup, int64_t total) {
  return done / static_cast<double>(std::max<int64_t>(1, total - warmup));
}

// The lowest factor, from exactly one of min_lr and min_lr_rate.
double floor_factor(const ScheduleRequest& request) {
  require(request.has("min_lr") != request.has("min_lr_rate"),
          "lr_scheduler_kwargs: expected exactly one of min_lr and min_lr_rate");
  if (request.has("min_lr")) return request.number("min_lr", 0) / request.learning_rate;
  return request.number("min_lr_rate", 0);
}

ScheduleFactor cosine_to(const ScheduleRequest& request, double floor) {
  const int64_t warmup = request.warmup_steps, total = request.total_steps;
  const double cycles = request.number("num_cycles", 0.5);
  return [=](int64_t step) {
    if (step < warmup) return linear_warmup(step, warmup);
    const double progress = share(static_cast<double>(step - warmup), warmup, total);
    return above_floor(half_cosine(cycles, progress), floor);
  };
}

ScheduleFactor cosine(const ScheduleRequest& request) { return cosine_to(request, 0); }

ScheduleFactor cosine_with_min_lr(const ScheduleRequest& request) {
  return cosine_to(request, floor_factor(request));
}

ScheduleFactor cosine_with_restarts(const ScheduleRequest& request) {
  const int64_t warmup = request.warmup_steps, total = request.total_steps;
  const double cycles = request.number("num_cycles", 1);
  return [=](int64_t step) {
    if (step < warmup) return linear_warmup(step, warmup);
    const double progress = share(static_cast<double>(step - warmup), warmup, total);
    if (progress >= 1.0) return 0.0;
    const double within = std::fmod(cycles * progress, 1.0);
    return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * within)));
  };
}

// One step ahead of cosine_with_min_lr, so its first step has a rate. Past its end it goes up
// again, as the original.
ScheduleFactor cosine_warmup_with_min_lr(const ScheduleRequest& request) {
  const int64_t warmup = request.warmup_steps, total = request.total_steps;
  const double cycles = request.number("num_cycles", 0.5), floor = floor_factor(request);
  const bool has_start = request.has("warmup_lr_rate");
  const double start = request.number("warmup_lr_rate", 0);
  return [=](int64_t step) {
    if (step < warmup && has_start) return start + (1.0 - start) * linear_warmup(step, warmup - 1);
    if (step < warmup) return linear_warmup(step + 1, warmup);
    const double progress = share(static_cast<double>(step - warmup) + 1.0, warmup, total);
    return above_floor(half_cosine(cycles, progress), floor);
  };
}

[[maybe_unused]] const bool kScheduleCosineRegistered = [] {
  auto& registry = ScheduleRegistry::instance();
  registry.add("cosine", {{"num_cycles"}, cosine});
  registry.add("cosine_with_restarts", {{"num_cycles"}, cosine_with_restarts});
  registry.add("cosine_with_min_lr", {{"num_cycles", "min_lr", "min_lr_rate"}, cosine_with_min_lr});
  registry.add(
      "cosine_warmup_with_min_lr",
      {{"num_cycles", "min_lr", "min_lr_rate", "warmup_lr_rate"}, cosine_warmup_with_min_lr});
  return true;
}();

}  // namespace
}  // namespace fastsft
