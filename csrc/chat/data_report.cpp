#include "chat/data_report.h"

#include <algorithm>
#include <cstdio>

#include "chat/chunk_parser.h"
#include "core/error.h"
#include "core/json.h"

namespace fastsft {
namespace {

constexpr size_t kNumNamed = 5;

std::string percent(int64_t part, int64_t whole) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %%", whole == 0 ? 0.0 : 100.0 * part / whole);
  return text;
}

std::string action_counts(const DataReport::Entry& entry) {
  std::string text;
  for (size_t action = 0; action < kNumOutcomes; ++action) {
    const int64_t count = entry.by_action[action];
    if (count == 0) continue;
    text += concat(text.empty() ? "" : ", ", name_of(static_cast<Outcome>(action)), " ", count);
  }
  return text;
}

bool has_action(const LabelledRecord& record, Outcome action) {
  return std::any_of(record.findings.begin(), record.findings.end(),
                     [&](const RecordIssue& finding) { return finding.action == action; });
}

}  // namespace

std::string fastchat_warning(const Mismatch& mismatch) {
  return concat("WARNING: tokenization mismatch: ", mismatch.counted, " vs. ", mismatch.real,
                ". #turn = ", mismatch.turns, ". (ignored)");
}

void DataReport::add(const LabelledRecord& record, const std::string& file) {
  if (record.is_cut_off) {
    ++num_truncated_;
    return add_remarks(record, file);
  }
  const Example& example = record.labels.example;
  if (record.labels.dropped) warnings_.push_back({num_records_, record.labels.mismatch});
  ++num_records_;
  num_whole_ += !record.is_later_reply;
  num_tokens_ += static_cast<int64_t>(example.ids.size());
  for (const TokenSpan& span : example.learned) num_learned_ += span.end - span.begin;
  num_without_labels_ += example.learned.empty();
  num_excluded_ += record.outcome == Outcome::kExcluded;
  num_salvaged_ += record.outcome < Outcome::kUnlabelled && has_action(record, Outcome::kSalvaged);
  num_truncated_ += has_action(record, Outcome::kTruncated);
  add_remarks(record, file);
}

void DataReport::add_remarks(const LabelledRecord& record, const std::string& file) {
  if (record.findings.empty()) return;
  const std::string name = file.empty() ? record.name : concat(file, ": ", record.name);
  for (size_t i = 0; i < record.findings.size(); ++i) {
    const RecordIssue& finding = record.findings[i];
    const auto is_same = [&](const RecordIssue& other) { return other.remark == finding.remark; };
    // Count records, not messages.
    if (std::any_of(record.findings.begin(), record.findings.begin() + i, is_same)) continue;
    Entry& entry = entries_[static_cast<size_t>(finding.remark)];
    ++entry.by_action[static_cast<size_t>(finding.action)];
    if (entry.count == 0) {
      const bool has_place = finding.message >= 0 && !finding.reason.empty();
      entry.reason = (has_place ? concat("message ", finding.message, ": ") : "") + finding.reason;
    }
    ++entry.count;
    // another row of the same record
    const bool is_named = !entry.first.empty() && entry.first.back() == name;
    if (entry.first.size() < kNumNamed && !is_named) entry.first.push_back(name);
  }
}

void DataReport::append(const DataReport& next) {
  for (Warning warning : next.warnings_) {
    warning.record += num_records_;
    warnings_.push_back(warning);
  }
  formats_.insert(formats_.end(), next.formats_.begin(), next.formats_.end());
  num_records_ += next.num_records_;
  num_whole_ += next.num_whole_;
  num_tokens_ += next.num_tokens_;
  num_learned_ += next.num_learned_;
  num_excluded_ += next.num_excluded_;
  num_salvaged_ += next.num_salvaged_;
  num_truncated_ += next.num_truncated_;
  num_without_labels_ += next.num_without_labels_;
  for (size_t i = 0; i < kNumIssues; ++i) {
    Entry& entry = entries_[i];
    const Entry& more = next.entries_[i];
    if (entry.count == 0) entry.reason = more.reason;
    entry.count += more.count;
    for (size_t action = 0; action < kNumOutcomes; ++action) {
      entry.by_action[action] += more.by_action[action];
    }
    for (const std::string& name : more.first) {
      const bool is_named = !entry.first.empty() && entry.first.back() == name;
      if (entry.first.size() < kNumNamed && !is_named) entry.first.push_back(name);
    }
  }
}

std::string DataReport::summary() const {
  const std::string of =
      concat(" rows of ", num_whole_, num_whole_ == 1 ? " record, " : " records, ");
  std::string text = concat(
      num_records_,
      num_whole_ < num_records_ ? of
      : num_records_ == 1       ? " conversation, "
                                : " conversations, ",
      num_tokens_, " tokens, ", num_learned_, " learned (", percent(num_learned_, num_tokens_),
      "); ", num_without_labels_, " without a label, ", num_dropped(), " of them dropped and ",
      num_excluded_, " excluded; ", num_salvaged_, " salvaged, ", num_truncated_, " truncated");
  for (size_t i = 0; i < kNumIssues; ++i) {
    const Entry& entry = entries_[i];
    if (entry.count == 0) continue;
    // Issues are also counted for cut-off pieces, which are not records, so no percentage is given
    // if it would exceed 100%.
    const std::string share =
        entry.count > num_records_ ? "" : concat(" (", percent(entry.count, num_records_), ")");
    text += concat("\n  ", name_of(static_cast<Issue>(i)), ": ", action_counts(entry), share,
                   ", first: ");
    for (size_t k = 0; k < entry.first.size(); ++k) text += (k == 0 ? "" : ", ") + entry.first[k];
    if (!entry.reason.empty()) text += concat(" (", entry.reason, ")");
  }
  return text;
}

namespace {

Json entry_to_json(const DataReport::Entry& entry) {
  Json json = {{"count", entry.count}};
  for (size_t action = 0; action < kNumOutcomes; ++action) {
    if (entry.by_action[action] == 0) continue;
    json[name_of(static_cast<Outcome>(action))] = entry.by_action[action];
  }
  json["first"] = entry.first;
  if (!entry.reason.empty()) json["reason"] = entry.reason;
  return json;
}

DataReport::Entry entry_from_json(const Json& json) {
  DataReport::Entry entry;
  entry.count = json.at("count").get<int64_t>();
  for (size_t action = 0; action < kNumOutcomes; ++action) {
    entry.by_action[action] = json.value(name_of(static_cast<Outcome>(action)), int64_t{0});
  }
  entry.first = json.at("first").get<std::vector<std::string>>();
  entry.reason = json.value("reason", "");
  return entry;
}

}  // namespace

std::string DataReport::to_json() const {
  Json json = {{"records", num_records_},    {"whole_records", num_whole_},
               {"kept", num_kept()},         {"dropped", num_dropped()},
               {"excluded", num_excluded_},  {"without_labels", num_without_labels_},
               {"salvaged", num_salvaged_},  {"truncated", num_truncated_},
               {"tokens", num_tokens_},      {"learned_tokens", num_learned_},
               {"formats", Json::array()},   {"reasons", Json::object()},
               {"mismatches", Json::array()}};
  for (const FormatUse& use : formats_) {
    json["formats"].push_back({{"format", use.name},
                               {"title", use.title},
                               {"column", use.column},
                               {"records", use.count},
                               {"unused", use.unused}});
  }
  for (size_t i = 0; i < kNumIssues; ++i) {
    if (entries_[i].count == 0) continue;
    json["reasons"][name_of(static_cast<Issue>(i))] = entry_to_json(entries_[i]);
  }
  for (const Warning& warning : warnings_) {
    const Mismatch& mismatch = warning.mismatch;
    json["mismatches"].push_back({warning.record, mismatch.counted, mismatch.real, mismatch.turns});
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

DataReport DataReport::from_json(const std::string& text) {
  DataReport report;
  try {
    const Json json = parse_json(text, "data report");
    report.num_records_ = json.at("records").get<int64_t>();
    report.num_whole_ = json.at("whole_records").get<int64_t>();
    report.num_excluded_ = json.at("excluded").get<int64_t>();
    report.num_without_labels_ = json.at("without_labels").get<int64_t>();
    report.num_salvaged_ = json.at("salvaged").get<int64_t>();
    report.num_truncated_ = json.at("truncated").get<int64_t>();
    report.num_tokens_ = json.at("tokens").get<int64_t>();
    report.num_learned_ = json.at("learned_tokens").get<int64_t>();
    for (const Json& use : json.at("formats")) {
      report.formats_.push_back(
          {use.at("format").get<std::string>(), use.at("title").get<std::string>(),
           use.at("column").get<std::string>(), use.at("records").get<int64_t>(),
           use.at("unused").get<std::vector<std::string>>()});
    }
    const Json& reasons = json.at("reasons");
    for (size_t i = 0; i < kNumIssues; ++i) {
      const auto found = reasons.find(name_of(static_cast<Issue>(i)));
      if (found != reasons.end()) report.entries_[i] = entry_from_json(*found);
    }
    for (const Json& row : json.at("mismatches")) {
      const auto numbers = row.get<std::array<int64_t, 4>>();
      report.warnings_.push_back({numbers[0], {numbers[1], numbers[2], numbers[3]}});
    }
  } catch (const Json::exception& error) {
    throw_invalid("data report: ", error.what());
  }
  return report;
}

namespace {

// Returns "conversations[3]" or the field's name, or null for the record itself.
Json name_field(const Conversation& record, int64_t message) {
  const auto index = static_cast<size_t>(message);
  if (message < 0 || index >= record.messages.size()) return {};
  if (record.messages[index].field != nullptr) return record.messages[index].field;
  return concat(list_name(record), "[", message, "]");
}

std::string make_line(const Conversation& record, const std::string& file, const Place& place,
                      const RecordIssue& finding, const char* action) {
  const Json line = {{"file", file},
                     {"record", record.number},
                     {"line", place.line},
                     {"byte", place.byte},
                     {"id", record.id},
                     {"field", name_field(record, finding.message)},
                     {"remark", name_of(finding.remark)},
                     {"reason", finding.reason},
                     {"action", action},
                     {"excerpt", place.excerpt}};
  return line.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace

std::string bad_record_line(const RecordChunk& chunk, const Conversation& record,
                            const std::string& file, const RecordIssue& finding,
                            const char* action) {
  return make_line(record, file, find_place(chunk, record, finding.message), finding, action);
}

void place_findings(const RecordChunk& chunk, const Conversation& record, const std::string& file,
                    LabelledRecord& labelled, std::string& lines) {
  for (RecordError& fault : labelled.faults) {
    Place place = find_place(chunk, record, fault.message);
    const RecordIssue finding{fault.remark, Outcome::kExcluded, fault.message, fault.reason};
    lines += make_line(record, file, place, finding, "stopped");
    fault.file = file;
    fault.line = place.line;
    fault.byte = place.byte;
    fault.excerpt = std::move(place.excerpt);
  }
  for (const RecordIssue& finding : labelled.findings) {
    if (finding.action < Outcome::kSalvaged) continue;
    lines += bad_record_line(chunk, record, file, finding, name_of(finding.action));
  }
}

}  // namespace fastsft
