#pragma once

#include <memory>
#include <string>

#include "chat/conversation.h"
#include "chat/data_format.h"
#include "chat/json_scanner.h"

namespace fastsft {

// Reads records of one data format into Conversations. Fields that labels do not need are checked
// to be JSON and skipped; of a field that comes twice the last one counts, as in Python.
class RecordParser {
 public:
  explicit RecordParser(FormatChoice choice = {});

  // The value that comes next in `scanner`. `record` is overwritten but for its place. A record of
  // another format has that as its fault.
  void parse(JsonScanner& scanner, Conversation& record);

  // Of all records so far.
  const UnusedFields& unused() const { return unused_; }

 private:
  void explain_missing(JsonScanner& record_start, Conversation& record) const;

  FormatChoice choice_;
  UnusedFields unused_;
  std::unique_ptr<FieldReader> reader_;
  std::string key_;
};

}  // namespace fastsft
