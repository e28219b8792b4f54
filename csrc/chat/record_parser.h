#pragma once

#include <memory>
#include <string>

#include "chat/conversation.h"
#include "chat/data_format.h"
#include "chat/train_mark.h"
#include "core/json_scanner.h"

namespace fastsft {

// Reads records of one data format into Conversations. Fields that labels do not need are checked
// to be JSON and skipped; of a field that comes twice the last one counts, as in Python.
class RecordParser {
 public:
  // `is_named`: --data_format says so; else a record may show that it is not of that format.
  explicit RecordParser(FormatChoice choice = {}, bool is_named = false);

  // Reads the next value of `scanner` into `record`, whose position is kept. A record of another
  // format gets that as its fault.
  void parse(JsonScanner& scanner, Conversation& record);

  // Of all records so far.
  const UnusedFields& unused() const { return unused_; }

 private:
  bool may_hold_reply(const Conversation& record) const;
  bool has_odd_prompt(const Conversation& record) const;
  void refuse_doubtful(JsonScanner& record_start, Conversation& record) const;
  bool lacks_reply(const RecordSketch& sketch) const;
  void explain_missing(JsonScanner& record_start, Conversation& record) const;

  FormatChoice choice_;
  bool is_named_;
  UnusedFields unused_;
  MarkReader marks_;
  std::unique_ptr<FieldReader> reader_;
  std::string key_;
};

}  // namespace fastsft
