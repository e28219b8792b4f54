#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "core/registry.h"

namespace fastsft {

// Keyword arguments of a schedule, such as {"num_cycles", 0.5} or {"decay_type", "cosine"}.
using ScheduleOptions = std::map<std::string, std::variant<double, std::string>>;

struct ScheduleRequest {
  double learning_rate = 0;  // peak rate
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  ScheduleOptions options;

  double number(const std::string& name, double otherwise) const;
  std::string text(const std::string& name, const std::string& otherwise) const;
  bool has(const std::string& name) const { return options.count(name) != 0; }
};

// Returns the factor by which the peak learning rate is multiplied at the 0-based step
// (docs/spec/trainer_semantics.md, section 12).
using ScheduleFactor = std::function<double(int64_t step)>;

struct ScheduleEntry {
  std::vector<std::string> options;  // accepted names; other names are an error
  std::function<ScheduleFactor(const ScheduleRequest&)> make;
};

struct ScheduleTag {
  static constexpr const char* kNoun = "learning rate schedule";
};
using ScheduleRegistry = Registry<ScheduleTag, ScheduleEntry>;

// Returns step / max(1, warmup_steps), the ramp with which most schedules begin.
double linear_warmup(int64_t step, int64_t warmup_steps);

// Learning rates by 0-based optimizer step; they do not depend on the rank count.
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
