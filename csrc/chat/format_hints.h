#pragma once

#include <string>

#include "chat/data_format.h"
#include "chat/json_scanner.h"

namespace fastsft {

// Of a record that is of no format: its fields, and how to make a record that is of one, as far as
// they tell. `record_start`: before the record. `is_first`: of its file.
std::string describe_fields(const RecordSketch& record, JsonScanner record_start, bool is_first);

// OpenAssistant's flat rows: a message each, of a tree.
bool is_tree_row(const RecordSketch& record);

}  // namespace fastsft
