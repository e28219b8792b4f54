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
  // `where` begins the message of every fault.
  ConversationReader(std::string text, const std::string& where);

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

// The whole file. Throws std::runtime_error when it cannot be read.
std::string read_data_file(const std::string& path);

}  // namespace fastsft
