#include "optim/schedule.h"

#include <algorithm>

#include "core/error.h"

namespace fastsft {
namespace {

template <typename Value>
Value option(const ScheduleRequest& request, const std::string& name, const Value& otherwise,
             const char* kind) {
  auto found = request.options.find(name);
  if (found == request.options.end()) return otherwise;
  const Value* value = std::get_if<Value>(&found->second);
  require(value != nullptr, "lr_scheduler_kwargs: expected ", kind, " for ", name);
  return *value;
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

}  // namespace fastsft
