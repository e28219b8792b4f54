#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "chat/conversation.h"
#include "chat/record_parser.h"
#include "chat/record_reader.h"
#include "chat/share.h"

namespace fastsft {

// Parses chunks of a data file strictly. Broken JSON in an array throws std::invalid_argument with
// file, record, line, column and excerpt. A line that is not JSON, and errors inside a record, are
// stored in the Conversation, and the mask policy decides about them.
class ChunkParser {
 public:
  // `where`: a prefix for every error message, such as the file name. `is_named`: see RecordParser.
  explicit ChunkParser(std::string where, FormatChoice format = {}, bool is_named = false)
      : where_(std::move(where)), parser_(std::move(format), is_named) {}

  // Overwrites `records` with the records of `chunk` that `share` selects.
  void parse(const RecordChunk& chunk, const Share& share, std::vector<Conversation>& records);

  // Returns all unused fields so far.
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

// Detects a file's data format: the format that the first matching record has. Only format `name`
// is tried, or all formats if `name` is "auto". If no record matches, returns the default format
// for "auto", else format `name` with its default list.
FormatChoice choose_format(const RecordChunk& chunk, const std::string& name);

// A position in a data file: line counted from 1, byte counted from 0, and the first characters at
// that position.
struct Place {
  int64_t line = 0;
  int64_t byte = 0;
  std::string excerpt;
};
// Returns the position of message number `message`, or the record's own position if `message` is
// -1.
Place find_place(const RecordChunk& chunk, const Conversation& record, int64_t message);

}  // namespace fastsft
