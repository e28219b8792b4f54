#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "chat/conversation.h"
#include "chat/record_parser.h"
#include "chat/record_reader.h"
#include "chat/share.h"

namespace fastsft {

// Parses chunks strictly. Faults of an array's JSON throw std::invalid_argument with file, record,
// line, column and excerpt; a line that is no JSON and faults inside a record stay in the
// Conversation for the mask policy to judge.
class ChunkParser {
 public:
  // `where` begins the message of every fault. `is_named`: as of RecordParser.
  explicit ChunkParser(std::string where, FormatChoice format = {}, bool is_named = false)
      : where_(std::move(where)), parser_(std::move(format), is_named) {}

  // The records of `chunk` that `share` takes; `records` is overwritten.
  void parse(const RecordChunk& chunk, const Share& share, std::vector<Conversation>& records);

  // Fields of the records so far.
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

// The format of the first records that are of one: of the format `name`, or "auto" for any. Of none
// the default, or `name` with its usual list.
FormatChoice choose_format(const RecordChunk& chunk, const std::string& name);

// Place of a message of a record, or for -1 the record itself: line from 1, byte from 0, and
// the first characters there.
struct Place {
  int64_t line = 0;
  int64_t byte = 0;
  std::string excerpt;
};
Place find_place(const RecordChunk& chunk, const Conversation& record, int64_t message);

}  // namespace fastsft
