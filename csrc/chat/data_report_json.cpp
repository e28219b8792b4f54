#include "chat/data_report.h"
#include "core/error.h"
#include "core/json.h"

namespace fastsft {
namespace {

Json entry_to_json(const DataReport::Entry& entry) {
  Json json = {{"count", entry.count}};
  for (size_t action = 0; action < kNumActions; ++action) {
    if (entry.by_action[action] == 0) continue;
    json[name_of(static_cast<Action>(action))] = entry.by_action[action];
  }
  json["first"] = entry.first;
  if (!entry.reason.empty()) json["reason"] = entry.reason;
  return json;
}

DataReport::Entry entry_from_json(const Json& json) {
  DataReport::Entry entry;
  entry.count = json.at("count").get<int64_t>();
  for (size_t action = 0; action < kNumActions; ++action) {
    entry.by_action[action] = json.value(name_of(static_cast<Action>(action)), int64_t{0});
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
  for (size_t i = 0; i < kNumRemarks; ++i) {
    if (entries_[i].count == 0) continue;
    json["reasons"][name_of(static_cast<Remark>(i))] = entry_to_json(entries_[i]);
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
    for (size_t i = 0; i < kNumRemarks; ++i) {
      const auto found = reasons.find(name_of(static_cast<Remark>(i)));
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

}  // namespace fastsft
