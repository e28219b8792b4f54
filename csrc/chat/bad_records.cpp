#include "chat/chunk_parser.h"
#include "chat/data_report.h"
#include "core/error.h"
#include "core/json.h"

namespace fastsft {
namespace {

// "conversations[3]", or null for the record itself.
Json name_field(const Conversation& record, int64_t message) {
  const auto index = static_cast<size_t>(message);
  if (message < 0 || index >= record.messages.size()) return {};
  if (record.messages[index].field != nullptr) return record.messages[index].field;
  return concat(list_name(record), "[", message, "]");
}

std::string make_line(const Conversation& record, const std::string& file, const Place& place,
                      const Finding& finding, const char* action) {
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
                            const std::string& file, const Finding& finding, const char* action) {
  return make_line(record, file, find_place(chunk, record, finding.message), finding, action);
}

void place_findings(const RecordChunk& chunk, const Conversation& record, const std::string& file,
                    LabelledRecord& labelled, std::string& lines) {
  for (DataFault& fault : labelled.faults) {
    Place place = find_place(chunk, record, fault.message);
    const Finding finding{fault.remark, Action::kExcluded, fault.message, fault.reason};
    lines += make_line(record, file, place, finding, "stopped");
    fault.file = file;
    fault.line = place.line;
    fault.byte = place.byte;
    fault.excerpt = std::move(place.excerpt);
  }
  for (const Finding& finding : labelled.findings) {
    if (finding.action < Action::kSalvaged) continue;
    lines += bad_record_line(chunk, record, file, finding, name_of(finding.action));
  }
}

}  // namespace fastsft
