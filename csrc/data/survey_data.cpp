#include "data/survey_data.h"

#include <algorithm>

#include "chat/conversation_json.h"
#include "core/error.h"

namespace fastsft {
namespace {

// A chunk with its records as they were before they became several rows, if whole records are
// chosen.
struct SurveyChunk : LabelledChunk {
  std::vector<Conversation> whole;
};

void explain_whole(const Labeller& labeller, SurveyedRecord& record) {
  std::vector<Conversation> pieces = {record.conversation};
  labeller.split(pieces);
  if (!labeller.is_concurrent()) labeller.label(pieces);  // divides further
  for (const Conversation& piece : pieces) record.rows.push_back(explain(labeller, piece));
  record.json =
      conversation_json(record.conversation, RoleNames(true, labeller.options().role_map));
}

class SurveyWork : public InputWork<SurveyChunk> {
 public:
  SurveyWork(std::vector<DataInput> inputs, const Labeller& labeller, const SurveyChoice& choice,
             const PollProgress& poll)
      : InputWork(std::move(inputs), poll),
        choice_(choice),
        is_whole_(choice.whole),
        labeller_(labeller) {}

  Survey finish() {
    survey_.summary.report.set_formats(walk_.formats(labeller_));
    survey_.num_matching = choice_.num_matching();
    survey_.chosen = choice_.take();
    for (SurveyedRecord& record : survey_.chosen) {
      if (is_whole_) {
        explain_whole(labeller_, record);
      } else {
        record.explanation = explain(labeller_, record.conversation);
      }
    }
    return std::move(survey_);
  }

 private:
  void process(SurveyChunk& chunk) override {
    chunk.parse();
    if (is_whole_) chunk.whole = chunk.records;
    chunk.label(labeller_);
    for (size_t i = 0; i < chunk.records.size(); ++i) {
      if (chunk.labelled[i].faults.empty()) continue;
      chunk.bad_records.clear();  // a survey does not write these lines
      place_findings(chunk.chunk, chunk.records[i], chunk.input->name, chunk.labelled[i],
                     chunk.bad_records);
    }
  }

  void consume(SurveyChunk& chunk) override {
    for (size_t i = 0; i < chunk.records.size(); ++i) {
      const LabelledRecord& labelled = chunk.labelled[i];
      const int64_t copies = chunk.input->share.copies(chunk.records[i].number);
      if (labelled.faults.empty()) {
        count(labelled, walk_.file_of(chunk), copies);
      } else if (copies > 0) {
        add_fault(labelled.faults.front());
      }
      if (copies > 0 && !is_whole_) {
        choice_.show(chunk.input->name, {&labelled, 1}, chunk.records[i]);
      }
    }
    show_whole(chunk);
  }

  // A record's rows follow each other.
  void show_whole(SurveyChunk& chunk) {
    size_t begin = 0;
    for (Conversation& record : chunk.whole) {
      size_t end = begin;
      while (end < chunk.records.size() && chunk.records[end].number == record.number) ++end;
      const std::span<const LabelledRecord> rows(chunk.labelled.data() + begin, end - begin);
      if (chunk.input->share.copies(record.number) > 0) {
        choice_.show(chunk.input->name, rows, record);
      }
      begin = end;
    }
  }

  void count(const LabelledRecord& labelled, const std::string& file, int64_t copies) {
    for (int64_t i = 0; i < copies; ++i) survey_.summary.report.add(labelled, file);
    if (!labelled.has_row() || copies == 0) return;
    int64_t learned = 0;
    for (const TokenSpan& span : labelled.labels.example.learned) learned += span.end - span.begin;
    survey_.lengths[static_cast<int64_t>(labelled.labels.example.ids.size())] += copies;
    survey_.learned[learned] += copies;
  }

  void add_fault(const RecordError& fault) {
    ++survey_.summary.num_faults;
    if (survey_.summary.faults.size() < kMaxFaults) survey_.summary.faults.push_back(fault);
  }

  Survey survey_;
  RecordChoice choice_;
  bool is_whole_;
  const Labeller& labeller_;
};

}  // namespace

Survey survey_data(std::vector<DataInput> inputs, const Labeller& labeller,
                   const SurveyChoice& choice, const PollProgress& poll) {
  choice.check();
  SurveyWork work(std::move(inputs), labeller, choice, poll);
  work.run(labeller.is_concurrent() ? labeller.options().num_threads : 1);
  return work.finish();
}

namespace {

constexpr const char* kStopped = "stopped";

// Finaliser of SplitMix64. It is a bijection, so different indices get different keys.
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
         std::any_of(labelled.findings.begin(), labelled.findings.end(),
                     [&](const RecordIssue& each) {
                       return word == name_of(each.remark) || word == name_of(each.action);
                     });
}

}  // namespace

void SurveyChoice::check() const {
  require(count >= 0, "number of records: expected 0 or more, got ", count);
  if (!only) return;
  std::vector<std::string> words = {kStopped};
  for (size_t i = 0; i < kNumOutcomes; ++i) words.push_back(name_of(static_cast<Outcome>(i)));
  for (size_t i = 0; i < kNumIssues; ++i) words.push_back(name_of(static_cast<Issue>(i)));
  if (std::find(words.begin(), words.end(), *only) != words.end()) return;
  std::string known;
  for (const std::string& word : words) known += (known.empty() ? "" : ", ") + word;
  throw_invalid("only: got \"", *only, "\", expected one of ", known);
}

void RecordChoice::show(const std::string& file, std::span<const LabelledRecord> rows,
                        Conversation& conversation) {
  const int64_t place = num_shown_++;
  const auto any = [&](const auto& is_wanted) { return std::ranges::any_of(rows, is_wanted); };
  const bool is_wanted = !choice_.id || std::to_string(conversation.number) == *choice_.id ||
                         any([&](const LabelledRecord& row) { return row.name == *choice_.id; });
  if (!is_wanted) return;
  if (choice_.only && !any([&](const auto& row) { return is_named(row, *choice_.only); })) return;
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
    records.push_back({std::move(held.file), std::move(held.conversation), {}, {}, {}});
  }
  return records;
}

}  // namespace fastsft
