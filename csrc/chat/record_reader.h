#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/record_splitter.h"
#include "storage/byte_source.h"

namespace fastsft {

// Some consecutive records of a file, not parsed yet.
struct RecordChunk {
  std::string text;
  std::vector<RecordSlice> slices;
  bool is_array = false;  // a JSON array; otherwise a record per line
  int64_t first_byte = 0;
  int64_t first_line = 1;
  int64_t first_column = 1;  // counted in bytes
  int64_t first_number = 0;
  int64_t num_records = 0;

  // True if the chunk is so large that only one such chunk should be parsed at a time: the parsed
  // records take several times its size.
  bool is_large() const { return text.size() > size_t{8} << 20; }
};

// Reads a data file in chunks with whole records. The file is a JSON array of records or has a
// record per line, as its first byte shows. The text is UTF-8, and a byte order mark is skipped.
// Memory is bounded by the size of a chunk or the longest record allowed.
class RecordReader {
 public:
  static constexpr size_t kBlockSize = size_t{1} << 17;
  // A token's byte positions have 32 bits.
  static constexpr size_t kMaxRecord = (size_t{1} << 32) - 1;

  // `where`: a prefix for every error message. `source` must outlive the reader. `block_size`:
  // bytes per read. `max_record`: most bytes in a record.
  RecordReader(ByteSource& source, std::string where, size_t block_size = kBlockSize,
               size_t max_record = kMaxRecord);

  // Reads the next chunk. Returns false at the end. Throws std::invalid_argument if no record can
  // be read: the file has another format or encoding, its top level has no records, or a record is
  // too long.
  bool next(RecordChunk& chunk);

 private:
  void open();
  void refuse_other_formats() const;
  // Returns true if lines with other JSON values begin at `at` and a record comes after them.
  bool begins_lines(size_t at) const;
  // Throws if the object that begins at `at` goes on in the next line, as json.dump with `indent`
  // writes it.
  void refuse_indented(size_t at);
  // Throws because neither an array nor a record begins at `at`.
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
  std::string text_;  // bytes that were read but not handed out yet
  int64_t byte_ = 0;  // position at which `text_` begins
  int64_t line_ = 1;
  int64_t column_ = 1;
  int64_t number_ = 0;
  bool is_open_ = false;
  bool is_over_ = false;  // the source has no more bytes
  bool is_array_ = false;
  ArraySplitter array_;
  LineSplitter lines_;
};

}  // namespace fastsft
