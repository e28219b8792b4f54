#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <vector>

#include "chat/conversation.h"

namespace fastsft::bindings {

// Conversations from a sequence of message lists, read as RecordParser would read them from
// JSON. Nothing when something is not of the plain kinds (list or tuple of dicts, texts of type
// str, None, bool, int or float, no lone surrogate): the way through JSON then decides. The GIL
// must be held.
std::optional<std::vector<Conversation>> read_message_lists(pybind11::handle sources);

}  // namespace fastsft::bindings
