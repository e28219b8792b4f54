#include "data/record_choice.h"

#include <algorithm>

#include "core/error.h"

namespace fastsft {
namespace {

constexpr const char* kStopped = "stopped";

// SplitMix64's finaliser: a bijection, so that no two places have the same key.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

bool is_named(const LabelledRecord& labelled, const std::string& word) {
  if (!labelled.faults.empty()) {
    return word == kStopped || word == name_of(labelled.faults.front().remark);
  }
  return word == name_of(labelled.outcome) ||
         std::any_of(labelled.findings.begin(), labelled.findings.end(), [&](const Finding& each) {
           return word == name_of(each.remark) || word == name_of(each.action);
         });
}

}  // namespace

void SurveyChoice::check() const {
  require(count >= 0, "number of records: expected 0 or more, got ", count);
  if (!only) return;
  std::vector<std::string> words = {kStopped};
  for (size_t i = 0; i < kNumActions; ++i) words.push_back(name_of(static_cast<Action>(i)));
  for (size_t i = 0; i < kNumRemarks; ++i) words.push_back(name_of(static_cast<Remark>(i)));
  if (std::find(words.begin(), words.end(), *only) != words.end()) return;
  std::string known;
  for (const std::string& word : words) known += (known.empty() ? "" : ", ") + word;
  throw_invalid("only: got \"", *only, "\", expected one of ", known);
}

void RecordChoice::show(const std::string& file, const LabelledRecord& labelled,
                        Conversation& conversation) {
  const int64_t place = num_shown_++;
  const bool is_wanted = !choice_.id || labelled.name == *choice_.id ||
                         std::to_string(conversation.number) == *choice_.id;
  if (!is_wanted || (choice_.only && !is_named(labelled, *choice_.only))) return;
  ++num_matching_;
  const auto number = static_cast<uint64_t>(place);
  const uint64_t key = choice_.seed ? mix(number + mix(*choice_.seed)) : number;
  const auto size = static_cast<int64_t>(held_.size());
  if (choice_.count == 0 || (size == choice_.count && key > held_.rbegin()->first)) return;
  if (size == choice_.count) held_.erase(std::prev(held_.end()));
  held_.emplace(key, Held{place, file, std::move(conversation)});
}

std::vector<SurveyedRecord> RecordChoice::take() {
  std::vector<Held> all;
  for (auto& [key, held] : held_) all.push_back(std::move(held));
  held_.clear();
  std::sort(all.begin(), all.end(), [](const Held& a, const Held& b) { return a.place < b.place; });
  std::vector<SurveyedRecord> records;
  for (Held& held : all) {
    records.push_back({std::move(held.file), std::move(held.conversation), {}});
  }
  return records;
}

}  // namespace fastsft
