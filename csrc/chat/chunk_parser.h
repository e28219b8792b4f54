#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "chat/conversation.h"
#include "chat/record_parser.h"
#include "chat/record_reader.h"
#include "chat/share.h"

namespace fastsft {

// Parses chunks strictly. Broken JSON of an array throws std::invalid_argument with file, record,
// line, column and excerpt. A line that is not JSON, and faults inside a record, are noted in the
// Conversation for the mask policy to judge.
class ChunkParser {
 public:
  // `where` begins the message of every fault. `is_named`: as of RecordParser.
  explicit ChunkParser(std::string where, FormatChoice format = {}, bool is_named = false)
      : where_(std::move(where)), parser_(std::move(format), is_named) {}

  // Overwrites `records` with the records of `chunk` that `share` selects.
  void parse(const RecordChunk& chunk, const Share& share, std::vector<Conversation>& records);

  // Unused fields of the records so far.
  const UnusedFields& unused() const { return parser_.unused(); }

 private:
  void parse_items(const RecordChunk& chunk, const RecordSlice& slice, const Share& share,
                   Conversation next, std::vector<Conversation>& records);
  void parse_line(const RecordChunk& chunk, const RecordSlice& slice, Conversation& record);
  [[noreturn]] void fail(const RecordChunk& chunk, const JsonFault& fault,
                         const Conversation& record) const;

  std::string where_;
  RecordParser parser_;
};

// Detects the format by the first record that matches one: the format `name`, or with "auto" any.
// If none matches, returns the default, or `name` with its usual list.
FormatChoice choose_format(const RecordChunk& chunk, const std::string& name);

// Position of a message of a record, or for -1 of the record: line from 1, byte from 0, and the
// first characters there.
struct Place {
  int64_t line = 0;
  int64_t byte = 0;
  std::string excerpt;
};
Place find_place(const RecordChunk& chunk, const Conversation& record, int64_t message);

}  // namespace fastsft
