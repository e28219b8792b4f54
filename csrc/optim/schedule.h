#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "core/registry.h"

namespace fastsft {

// Keyword arguments of a schedule, e.g. {"num_cycles", 0.5}, {"decay_type", "cosine"}.
using ScheduleOptions = std::map<std::string, std::variant<double, std::string>>;

struct ScheduleRequest {
  double learning_rate = 0;  // the peak
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  ScheduleOptions options;

  double number(const std::string& name, double otherwise) const;
  std::string text(const std::string& name, const std::string& otherwise) const;
  bool has(const std::string& name) const { return options.count(name) != 0; }
};

// The factor of the peak learning rate at the 0-based step k (docs/spec/trainer_semantics.md,
// section 12).
using ScheduleFactor = std::function<double(int64_t step)>;

struct ScheduleEntry {
  std::vector<std::string> options;  // names that it takes; any other one is an error
  std::function<ScheduleFactor(const ScheduleRequest&)> make;
};

struct ScheduleTag {
  static constexpr const char* kNoun = "learning rate schedule";
};
using ScheduleRegistry = Registry<ScheduleTag, ScheduleEntry>;

// step / max(1, warmup_steps), the ramp that most schedules begin with.
double linear_warmup(int64_t step, int64_t warmup_steps);

// Learning rate at the 0-based optimizer step; the same for every number of ranks.
class Schedule {
 public:
  // Throws std::invalid_argument for an unknown name, an unknown option or a bad value.
  Schedule(const std::string& name, const ScheduleRequest& request);

  double rate(int64_t step) const { return learning_rate_ * factor_(step); }

 private:
  double learning_rate_;
  ScheduleFactor factor_;
};

}  // namespace fastsft
