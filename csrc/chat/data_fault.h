#pragma once

#include <cstdint>
#include <string>

namespace fastsft {

// What Python's own exception would be: FastChat's script has no other names for its faults.
enum class FaultKind { kKeyError, kIndexError, kTypeError, kAssertionError, kRuntimeError };

// Why a record cannot be labelled at all.
struct DataFault {
  FaultKind kind = FaultKind::kTypeError;
  int64_t record = 0;    // counted from 0
  std::string id;        // of the record, may be empty
  int64_t message = -1;  // counted from 0; -1 when the record itself is at fault
  std::string reason;

  // "record 17 (id abc), message 3: role ..."
  std::string what() const;
};

// The exception's name in Python.
const char* name_of(FaultKind kind);

// Text fit for a message: one line, valid UTF-8, at most 60 bytes.
std::string printable(const std::string& text);

}  // namespace fastsft
