#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace fastsft {

// A piece of a data file that ends with a record: bytes [begin, end) of a text. It begins where the
// piece before it ended, so that separators are in it, too.
struct RecordSlice {
  size_t begin = 0;
  size_t end = 0;
  int64_t num_records = 0;
  bool is_first = false;  // of the array
  bool is_last = false;   // the array's end and all that follows
};

// Which of 64 bytes of JSON are of these kinds; bit i is of byte i.
struct JsonBlock {
  uint64_t quotes = 0;
  uint64_t backslashes = 0;
  uint64_t brackets = 0;  // [ ] { }
};
inline constexpr size_t kJsonBlockSize = 64;

// Classifies `count` blocks from `text` on, with the widest instructions of the machine.
void classify_json(const char* text, size_t count, JsonBlock* blocks);
// The same without vectors, for the test of both.
void classify_json_portable(const char* text, size_t count, JsonBlock* blocks);

// Cuts the inside of a JSON array into slices by quotes and brackets alone, without judging the
// JSON: a strict scanner of the slices finds every fault at the byte where one of the whole array
// would find it.
class ArraySplitter {
 public:
  // `text` begins where the last slice of the call before ended, or after the array's "[", and
  // has grown at its end since. Appends the slices that are complete; with `is_end` all of it.
  void split(std::string_view text, bool is_end, std::vector<RecordSlice>& slices);

  // Nothing can follow any more.
  bool is_done() const { return is_done_; }

 private:
  void split_block(std::string_view text, size_t at, uint64_t brackets,
                   std::vector<RecordSlice>& slices);
  void add(std::string_view text, size_t end, bool is_last, std::vector<RecordSlice>& slices);
  void finish(std::string_view text, bool is_end, std::vector<RecordSlice>& slices);

  size_t begin_ = 0;    // of the next slice
  size_t scanned_ = 0;  // bytes of the text that were seen
  size_t record_ = 0;   // where the open record begins
  size_t closed_ = 0;   // after the array's "]"
  int64_t depth_ = 1;
  uint64_t in_string_ = 0;  // all bits set inside a string
  bool escaped_ = false;    // the next byte is
  bool is_first_ = true;
  bool is_done_ = false;
};

// Cuts lines, one slice each; blank ones have no record.
class LineSplitter {
 public:
  void split(std::string_view text, bool is_end, std::vector<RecordSlice>& slices);

 private:
  size_t scanned_ = 0;
};

}  // namespace fastsft
