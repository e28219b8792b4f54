#pragma once

#include <string>
#include <string_view>

#include "chat/conversation.h"
#include "chat/json_scanner.h"
#include "chat/record_parser.h"

namespace fastsft {

// Reads conversations from text in memory: a JSON array of records, or one record per line, told
// apart by the first byte. UTF-8, a byte order mark skipped. Faults of an array's JSON throw
// std::invalid_argument with file and byte; a line that is no JSON and faults inside a record stay
// in the Conversation for the mask policy to judge.
class ConversationReader {
 public:
  // `where` begins the message of every fault.
  ConversationReader(std::string text, std::string where);

  // False after the last record.
  bool next(Conversation& conversation);

 private:
  bool next_item(Conversation& conversation);
  bool next_line(Conversation& conversation);
  void read_line(std::string_view line, Conversation& conversation);

  std::string text_;
  std::string where_;
  JsonScanner scanner_;  // of the array
  RecordParser parser_;
  bool is_array_ = false;
  size_t at_ = 0;  // the next line's first byte
  int64_t line_ = 0;
  int64_t number_ = 0;
};

// The whole file. Throws std::runtime_error when it cannot be read.
std::string read_data_file(const std::string& path);

}  // namespace fastsft
