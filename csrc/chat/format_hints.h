#pragma once

#include <string>

#include "chat/conversation.h"
#include "chat/data_format.h"
#include "core/json_scanner.h"

namespace fastsft {

// Describes the fields of a record that matches no format, and how to make a record that matches.
// `record_start`: before the record. `is_first`: of its file.
std::string describe_fields(const RecordSketch& record, JsonScanner record_start, bool is_first);

// True for OpenAssistant's flat rows: one message of a tree each.
bool is_tree_row(const RecordSketch& record);

// True if preference data may have a field of this name and kind.
bool is_of_preference(const std::string& name, ValueKind kind);

// Why a record must not be read though it is of some format: it has "chosen" and "rejected" and no
// "messages" that end with a reply, or KTO's "label" next to a conversation, and its format would
// learn what is not wanted. Empty for another record.
std::string refuse_preference(const RecordSketch& record);

}  // namespace fastsft
