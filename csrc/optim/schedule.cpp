#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace fastsft {
namespace {

template <typename Value>
Value option(const ScheduleRequest& request, const std::string& name, const Value& otherwise,
             const char* kind) {
  auto found = request.options.find(name);
  if (found == request.options.end()) return otherwise;
  const Value* value = std::get_if<Value>(&found->second);
  if (value != nullptr) return *value;
  std::visit(
      [&](const auto& got) {
        throw_invalid("lr_scheduler_kwargs: expected ", kind, " for ", name, ", got ", got,
                      "; correct it, or leave it out");
      },
      found->second);
  return otherwise;
}

}  // namespace

double ScheduleRequest::number(const std::string& name, double otherwise) const {
  return option<double>(*this, name, otherwise, "a number");
}

std::string ScheduleRequest::text(const std::string& name, const std::string& otherwise) const {
  return option<std::string>(*this, name, otherwise, "a string");
}

double linear_warmup(int64_t step, int64_t warmup_steps) {
  return static_cast<double>(step) / static_cast<double>(std::max<int64_t>(1, warmup_steps));
}

Schedule::Schedule(const std::string& name, const ScheduleRequest& request)
    : learning_rate_(request.learning_rate) {
  require(request.warmup_steps >= 0, "expected warmup_steps of at least 0, got ",
          request.warmup_steps);
  const ScheduleEntry& entry = ScheduleRegistry::instance().get(name);
  for (const auto& [option_name, value] : request.options) {
    const auto& known = entry.options;
    if (std::find(known.begin(), known.end(), option_name) != known.end()) continue;
    std::string list;
    for (const auto& one : known) list += (list.empty() ? "" : ", ") + one;
    throw_invalid("lr_scheduler_kwargs: the schedule ", name, " has no option \"", option_name,
                  "\"; it takes ", list.empty() ? "none" : list);
  }
  factor_ = entry.make(request);
}

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
    // Returns exactly lr_end at the last step, even if warm-up takes all steps.
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

double half_cosine(double cycles, double progress) {
  return 0.5 * (1.0 + std::cos(std::numbers::pi * cycles * 2.0 * progress));
}

double above_floor(double factor, double floor) {
  return std::max(0.0, factor * (1 - floor) + floor);
}

double share(double done, int64_t warmup, int64_t total) {
  return done / static_cast<double>(std::max<int64_t>(1, total - warmup));
}

// Returns the lowest factor; requires exactly one of min_lr and min_lr_rate.
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

// Returns cosine_with_min_lr shifted by one step, so the first step has a learning rate above zero.
// The rate rises again after the last step, as in transformers.
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

// Returns a factor with warm-up, plateau and decay, which then stays at the lowest rate.
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
