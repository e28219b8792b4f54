#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"
#include "optim/schedule.h"

namespace fastsft {
namespace {

enum class Curve { kLinear, kCosine, kSqrt };

Curve curve(const std::string& option, const std::string& name) {
  if (name == "linear") return Curve::kLinear;
  if (name == "cosine") return Curve::kCosine;
  require(name == "1-sqrt", "lr_scheduler_kwargs: expected linear, cosine or 1-sqrt for ", option,
          ", got \"", name, "\"");
  return Curve::kSqrt;
}

double rise(Curve shape, double progress) {
  if (shape == Curve::kLinear) return progress;
  if (shape == Curve::kCosine) return 0.5 * (1.0 - std::cos(std::numbers::pi * progress));
  return 1.0 - std::sqrt(1.0 - progress);
}

double fall(Curve shape, double progress, double cycles) {
  if (shape == Curve::kLinear) return 1.0 - progress;
  if (shape == Curve::kCosine) {
    return 0.5 * (1.0 + std::cos(std::numbers::pi * cycles * 2.0 * progress));
  }
  return 1.0 - std::sqrt(progress);
}

// Warm-up, a plateau, a decay, then the lowest rate.
ScheduleFactor warmup_stable_decay(const ScheduleRequest& request) {
  require(request.has("num_decay_steps"),
          "lr_scheduler_kwargs: warmup_stable_decay needs num_decay_steps");
  const int64_t warmup = request.warmup_steps;
  const auto decay = static_cast<int64_t>(request.number("num_decay_steps", 0));
  const auto stable = static_cast<int64_t>(request.number(
      "num_stable_steps", static_cast<double>(request.total_steps - warmup - decay)));
  const double floor = request.number("min_lr_ratio", 0),
               cycles = request.number("num_cycles", 0.5);
  const Curve up = curve("warmup_type", request.text("warmup_type", "linear"));
  const Curve down = curve("decay_type", request.text("decay_type", "cosine"));
  return [=](int64_t step) {
    auto above_floor = [&](double factor) { return std::max(0.0, factor * (1 - floor) + floor); };
    if (step < warmup) return above_floor(rise(up, linear_warmup(step, warmup)));
    if (step < warmup + stable) return 1.0;
    if (step >= warmup + stable + decay) return floor;
    return above_floor(fall(down, linear_warmup(step - warmup - stable, decay), cycles));
  };
}

[[maybe_unused]] const bool kScheduleStableRegistered = ScheduleRegistry::instance().add(
    "warmup_stable_decay", {{"num_decay_steps", "num_stable_steps", "min_lr_ratio", "num_cycles",
                             "warmup_type", "decay_type"},
                            warmup_stable_decay});

}  // namespace
}  // namespace fastsft
