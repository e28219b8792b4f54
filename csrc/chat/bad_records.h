#pragma once

#include <string>

#include "chat/chunk_parser.h"
#include "chat/labeller.h"

namespace fastsft {

// A line of --report_bad.
std::string bad_record_line(const RecordChunk& chunk, const Conversation& record,
                            const std::string& file, const Finding& finding, const char* action);

// Fills in the places of the faults of a record, and appends to `lines` what --report_bad lists of
// it: one line of JSON for each fault and each finding that took something away, with file, record,
// line, byte, id, field, remark, reason, action and excerpt.
void place_findings(const RecordChunk& chunk, const Conversation& record, const std::string& file,
                    LabelledRecord& labelled, std::string& lines);

}  // namespace fastsft
