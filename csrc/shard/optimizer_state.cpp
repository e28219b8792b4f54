#include "shard/optimizer_state.h"

namespace fastsft {

int64_t StateSpec::count(const ElementRange& range) const {
  int64_t sum = 0;
  for (const ElementRange& segment : segments) {
    const ElementRange held = segment.intersection(range);
    if (held.size() == 0) continue;
    sum += (held.end - 1 - segment.begin) / block - (held.begin - segment.begin) / block + 1;
  }
  return sum;
}

int64_t StateSpec::offset(const ElementRange& range, const ElementRange& part) const {
  int64_t sum = 0;
  for (const ElementRange& segment : segments) {
    const ElementRange held = segment.intersection(range);
    if (held.size() == 0 || part.begin <= held.begin) continue;
    const int64_t first = (held.begin - segment.begin) / block;
    const bool before = part.begin >= held.end;
    sum += (before ? (held.end - 1 - segment.begin) / block + 1
                   : (part.begin - segment.begin) / block) -
           first;
  }
  return sum;
}

std::string names_of(const StateSpecs& specs) {
  std::string names;
  for (const auto& spec : specs) names += (names.empty() ? "" : ", ") + spec.name;
  return names.empty() ? "none" : names;
}

}  // namespace fastsft
