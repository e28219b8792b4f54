#pragma once

#include <string>

#include "chat/conversation.h"
#include "chat/data_format.h"

namespace fastsft {

// Whether a field of this name and kind may be one that preference data has.
bool is_of_preference(const std::string& name, ValueKind kind);

// Why a record must not be read though it is of some format: it has "chosen" and "rejected" and no
// "messages" that end with a reply, or KTO's "label" next to a conversation, and its format would
// learn what is not wanted. Empty for another record.
std::string refuse_preference(const RecordSketch& record);

}  // namespace fastsft
