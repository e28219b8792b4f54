#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "chat/remark.h"

namespace fastsft {

// What Python's own exception would be; kValueError where FastChat's reader of JSON would stop.
enum class FaultKind {
  kKeyError,
  kIndexError,
  kTypeError,
  kAssertionError,
  kRuntimeError,
  kValueError
};

// Why a record cannot be labelled at all.
struct DataFault {
  FaultKind kind = FaultKind::kTypeError;
  int64_t record = 0;    // counted from 0
  std::string id;        // of the record, may be empty
  int64_t message = -1;  // counted from 0; -1 when the record itself is at fault
  std::string reason;
  bool always_stops = false;  // whatever --on_bad_sample says
  // Its place, as far as that is known: line from 1, byte from 0, the first characters there.
  std::string file{};
  int64_t line = 0;
  int64_t byte = 0;
  std::string excerpt{};
  Remark remark = Remark::kCount;

  // "record 17 (id abc), message 3: role ... [line 18, byte 4711: {\"from\": ...]"
  std::string what() const;
};

// The exception's name in Python.
const char* name_of(FaultKind kind);

// Text fit for a message: one line, valid UTF-8, at most 60 bytes.
std::string printable(const std::string& text);

// At most 40 characters of data from its beginning, on one line, valid UTF-8.
std::string excerpt(std::string_view text);

// The exception that FastChat's script would stop with at a bad sample.
FaultKind fault_kind(Remark remark);

}  // namespace fastsft
