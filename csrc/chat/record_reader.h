#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/record_splitter.h"
#include "storage/byte_source.h"

namespace fastsft {

// Some records as they are in their file, not parsed yet.
struct RecordChunk {
  std::string text;
  std::vector<RecordSlice> slices;
  bool is_array = false;  // else lines
  int64_t first_byte = 0;
  int64_t first_line = 1;
  int64_t first_column = 1;  // in bytes
  int64_t first_number = 0;
  int64_t num_records = 0;

  // What is made of it is several times as large: one such chunk at a time.
  bool is_large() const { return text.size() > size_t{8} << 20; }
};

// Reads a data file in chunks of whole records: a JSON array of records, or one record per line,
// told apart by the first byte. UTF-8, a byte order mark skipped. Memory is bounded by a chunk, or
// by the longest record that is allowed.
class RecordReader {
 public:
  static constexpr size_t kBlockSize = size_t{1} << 17;
  static constexpr size_t kMaxRecord = (size_t{1} << 32) - 1;  // 32 bits point at a token's bytes

  // `where` begins the message of every fault; `source` must outlive the reader. `block_size` bytes
  // are read at a time; `max_record` is the size that a record may have.
  RecordReader(ByteSource& source, std::string where, size_t block_size = kBlockSize,
               size_t max_record = kMaxRecord);

  // False when there is nothing more. What no record can be read from throws
  // std::invalid_argument: other formats and encodings, a top level that holds no records, a
  // record that is too long.
  bool next(RecordChunk& chunk);

 private:
  void open();
  void refuse_other_formats() const;
  // Lines of other JSON values begin at `at`, and a record comes after them.
  bool begins_lines(size_t at) const;
  // What is at `at` begins neither an array nor a record.
  [[noreturn]] void refuse_start(size_t at) const;
  bool read_block();
  void split(std::vector<RecordSlice>& slices);
  void check_json() const;
  void check_size(size_t begin, size_t end, int64_t number, const char* more) const;
  void take_chunk(RecordChunk& chunk);
  void pass(std::string_view text);

  ByteSource& source_;
  std::string where_;
  size_t block_size_;
  size_t max_record_;
  std::string text_;  // read and not handed out yet
  int64_t byte_ = 0;  // of the text's beginning
  int64_t line_ = 1;
  int64_t column_ = 1;
  int64_t number_ = 0;
  bool is_open_ = false;
  bool is_over_ = false;  // of the source
  bool is_array_ = false;
  ArraySplitter array_;
  LineSplitter lines_;
};

}  // namespace fastsft
