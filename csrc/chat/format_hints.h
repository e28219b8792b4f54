#pragma once

#include <string>

#include "chat/conversation.h"
#include "chat/data_format.h"
#include "core/json_scanner.h"

namespace fastsft {

// Describes the fields of a record that matches no format, and says how to make it match.
// `record_start`: a scanner at the record's beginning. `is_first`: the record is the first of its
// file.
std::string describe_fields(const RecordSketch& record, JsonScanner record_start, bool is_first);

// Returns true for OpenAssistant's flat rows, each of which is a message in a tree.
bool is_tree_row(const RecordSketch& record);

// Returns true if preference data may have a field with this name and kind.
bool is_of_preference(const std::string& name, ValueKind kind);

// Returns why a record must not be read although it matches a format; "" if it may be read. Such a
// record is preference data from which the format would learn unwanted replies: it has "chosen" and
// "rejected" without "messages" that end with a reply, or KTO's "label" next to a conversation.
std::string refuse_preference(const RecordSketch& record);

}  // namespace fastsft
