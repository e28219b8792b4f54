#pragma once

#include <pybind11/pybind11.h>

#include <vector>

#include "chat/conversation.h"

namespace fastsft::bindings {

// Conversations from Python objects: a list of message lists, each message a dictionary. What is
// not of that form stays visible in the result, as with records of a file.
std::vector<Conversation> read_python_sources(const pybind11::sequence& sources);

}  // namespace fastsft::bindings
