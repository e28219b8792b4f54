#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace fastsft {

// A part of a data file that ends with a record: bytes [begin, end) in a text. It begins at the
// previous slice's end, so it includes separators.
struct RecordSlice {
  size_t begin = 0;
  size_t end = 0;
  int64_t num_records = 0;
  bool is_first = false;  // the array's first slice
  bool is_last = false;   // the array's end and everything after it
};

// The positions of some characters in 64 JSON bytes; bit i stands for byte i.
struct JsonBlock {
  uint64_t quotes = 0;
  uint64_t backslashes = 0;
  uint64_t brackets = 0;  // [ ] { }
};
inline constexpr size_t kJsonBlockSize = 64;

// Classifies `count` blocks from `text` on, with the machine's widest vector instructions.
void classify_json(const char* text, size_t count, JsonBlock* blocks);
// Does the same without vector instructions, for tests.
void classify_json_portable(const char* text, size_t count, JsonBlock* blocks);

// Cuts the inside of a JSON array into slices. The splitter looks at quotes and brackets only and
// does not check the JSON: a strict parser for the slices finds every error at the same byte as a
// parser for the whole array.
class ArraySplitter {
 public:
  // Appends the complete slices of `text`, or everything if `is_end` is true. `text` begins after
  // the last slice that the previous call returned, or after the array's "[". At its end it has
  // more bytes than in that call.
  void split(std::string_view text, bool is_end, std::vector<RecordSlice>& slices);

  // True after the last slice.
  bool is_done() const { return is_done_; }

 private:
  void split_block(std::string_view text, size_t at, uint64_t brackets,
                   std::vector<RecordSlice>& slices);
  void add(std::string_view text, size_t end, bool is_last, std::vector<RecordSlice>& slices);
  void finish(std::string_view text, bool is_end, std::vector<RecordSlice>& slices);

  size_t begin_ = 0;    // where the next slice begins
  size_t scanned_ = 0;  // bytes already seen
  size_t record_ = 0;   // where the open record begins
  size_t closed_ = 0;   // position after the array's "]"
  int64_t depth_ = 1;
  uint64_t in_string_ = 0;  // all bits set inside a string
  bool escaped_ = false;    // a backslash precedes the next byte
  bool is_first_ = true;
  bool is_done_ = false;
};

// Cuts a text into lines, a slice per line. Blank lines have no record.
class LineSplitter {
 public:
  void split(std::string_view text, bool is_end, std::vector<RecordSlice>& slices);

 private:
  size_t scanned_ = 0;
};

}  // namespace fastsft
