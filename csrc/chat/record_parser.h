#pragma once

#include <memory>
#include <string>

#include "chat/conversation.h"
#include "chat/data_format.h"
#include "chat/train_mark.h"
#include "core/json_scanner.h"

namespace fastsft {

// Reads records in one data format into Conversations. Fields that are not needed for labels are
// skipped after a check that they are JSON. If a field occurs twice, the last value counts, as in
// Python.
class RecordParser {
 public:
  // `is_named`: --data_format names the format. Otherwise a record may be refused because it seems
  // to have another format.
  explicit RecordParser(FormatChoice choice = {}, bool is_named = false);

  // Reads the scanner's next value into `record` and keeps the record's number and line. A record
  // with another format gets the read error kOtherFormat.
  void parse(JsonScanner& scanner, Conversation& record);

  // Returns all unused fields so far.
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
