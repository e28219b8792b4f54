#pragma once

#include <string>
#include <vector>

#include "chat/conversation.h"
#include "chat/json_scanner.h"

namespace fastsft {

// Reads FastChat's data files: a JSON array of records with "conversations", UTF-8, a byte order
// mark skipped. Records come one after another; faults of JSON throw std::invalid_argument with
// file and byte, faults inside a record stay in the Conversation for the mask policy to judge.
class ConversationReader {
 public:
  // Throws std::runtime_error when the file cannot be read.
  explicit ConversationReader(const std::string& path);

  // False after the last record.
  bool next(Conversation& conversation);

 private:
  void read_record(Conversation& conversation);
  void read_messages(Conversation& conversation);
  void read_message(Message& message);

  std::string text_;
  JsonScanner scanner_;
  std::string key_;
};

}  // namespace fastsft
