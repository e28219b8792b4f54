#include "chat/record_reader.h"

#include <algorithm>
#include <string_view>

#include "chat/data_format.h"
#include "chat/format_hints.h"
#include "chat/issue.h"
#include "chat/record_parser.h"
#include "core/error.h"
#include "core/json_scanner.h"

namespace fastsft {
namespace {

constexpr std::string_view kBetween = " \n\t\r,]";  // characters between records

struct Signature {
  std::string_view bytes;
  const char* what;
};

constexpr const char* kUtf32 = "UTF-32 text; iconv -f UTF-32 -t UTF-8 makes UTF-8 of it";
constexpr const char* kUtf16 = "UTF-16 text; iconv -f UTF-16 -t UTF-8 makes UTF-8 of it";

constexpr const char* kPickle = "a pickle of Python; load it there, and write it by json.dump";
constexpr const char* kPicture =
    "a picture; training needs conversations, as in docs/data_files.md";
constexpr const char* kWeights = "weights of a model; name a file of conversations";
constexpr const char* kTorchFile =
    "a file of torch.save; load it by torch, and write its records by json.dump";
constexpr const char* kExpectedJson = ": expected JSON in UTF-8, got ";

constexpr Signature kOthers[] = {
    {{"\x1F\x8B", 2}, "gzip; name it as a path, which is unpacked, or unpack it first"},
    {{"\x28\xB5\x2F\xFD", 4},
     "Zstandard; name it as a path, which is unpacked, or unpack it first"},
    {{"PK\x03\x04", 4}, "a ZIP archive; unpack it first"},
    {{"SQLite format 3", 15}, "a database of SQLite; write its rows as JSON lines"},
    {{"\x80\x02", 2}, kPickle},
    {{"\x80\x03", 2}, kPickle},
    {{"\x80\x04", 2}, kPickle},
    {{"\x80\x05", 2}, kPickle},
    {{"%PDF-", 5}, "a PDF document; its text has to be made into conversations first"},
    {{"\x89PNG", 4}, kPicture},
    {{"\xFF\xD8\xFF", 3}, kPicture},
    {{"\x89HDF", 4}, "HDF5; write its rows as JSON lines"},
    {{"GGUF", 4}, kWeights},
    {{"\x93NUMPY", 6}, "an array of NumPy; give the texts that it was made of"},
    {{"7z\xBC\xAF", 4}, "a 7z archive; unpack it first"},
    {{"Rar!", 4}, "a RAR archive; unpack it first"},
    {{"BZh", 3}, "bzip2; unpack it first"},
    {{"\xFD"
      "7zXZ",
      5},
     "xz; unpack it first"},
    {{"PAR1", 4}, "Parquet; name it as a path, which is read with pyarrow"},
    {{"\xFF\xFE\0\0", 4}, kUtf32},
    {{"\0\0\xFE\xFF", 4}, kUtf32},
    {{"\xFF\xFE", 2}, kUtf16},
    {{"\xFE\xFF", 2}, kUtf16},
    {{"\0\0\0", 3}, "UTF-32 text, or binary; iconv -f UTF-32BE -t UTF-8 makes UTF-8 of text"},
    {{"\0", 1}, "UTF-16 text, or binary; iconv -f UTF-16BE -t UTF-8 makes UTF-8 of text"},
};

// The length of a JSON header in 8 bytes, of which the last 4 are 0, and the header.
bool is_safetensors(std::string_view begin) {
  return begin.size() > 8 && begin[8] == '{' &&
         begin.substr(4, 4) == std::string_view("\0\0\0\0", 4);
}

// A ZIP archive whose first member is the pickle.
bool is_torch_file(std::string_view begin) {
  return begin.starts_with("PK\x03\x04") && begin.find("/data.pkl") != std::string_view::npos;
}

}  // namespace

RecordReader::RecordReader(ByteSource& source, std::string where, size_t block_size,
                           size_t max_record)
    : source_(source),
      where_(std::move(where)),
      block_size_(block_size),
      max_record_(std::min(max_record, kMaxRecord)) {}

void RecordReader::refuse_other_formats() const {
  const std::string_view begin = std::string_view(text_).substr(0, 100);
  if (is_safetensors(begin)) throw_invalid(where_, kExpectedJson, kWeights);
  if (is_torch_file(begin)) throw_invalid(where_, kExpectedJson, kTorchFile);
  for (const Signature& other : kOthers) {
    require(!begin.starts_with(other.bytes), where_, kExpectedJson, other.what);
  }
  // The little-endian encodings without byte order mark: JSON begins with an ASCII character.
  if (text_.size() < 2 || text_[0] == '\0' || text_[1] != '\0') return;
  const bool is_wider = std::string_view(text_).substr(2).starts_with(std::string_view("\0\0", 2));
  throw_invalid(where_, kExpectedJson,
                is_wider ? "UTF-32 text; iconv -f UTF-32LE -t UTF-8 makes UTF-8 of it"
                         : "UTF-16 text; iconv -f UTF-16LE -t UTF-8 makes UTF-8 of it");
}

bool RecordReader::read_block() {
  if (is_over_) return false;
  const size_t before = text_.size();
  // The read size doubles inside a long record, but stays below the longest record allowed.
  const size_t room = max_record_ - std::min(before, max_record_);
  const size_t wanted = std::max(block_size_, std::min(before, room + block_size_));
  text_.resize(before + wanted);
  size_t count = 0, got = 1;
  while (count < wanted && got != 0) {
    got = source_.read({text_.data() + before + count, wanted - count});
    count += got;
  }
  text_.resize(before + count);
  is_over_ = got == 0;
  return count != 0;
}

void RecordReader::open() {
  is_open_ = true;
  read_block();
  refuse_other_formats();
  size_t at = text_.starts_with("\xEF\xBB\xBF") ? 3 : 0;
  while ((at = text_.find_first_not_of(kJsonSpace, at)) == std::string::npos) {
    pass(text_);  // keep no white space, however long it is
    text_.clear();
    at = 0;
    if (!read_block()) break;
  }
  require(at < text_.size(), where_,
          ": expected an array of records or one record per line, got nothing: the file is empty");
  is_array_ = text_[at] == '[';
  if (!is_array_ && !begins_lines(at)) refuse_start(at);
  if (text_[at] == '{') refuse_indented(at);
  const size_t skipped = is_array_ ? at + 1 : text_.starts_with("\xEF\xBB\xBF") ? 3 : 0;
  pass(std::string_view(text_).substr(0, skipped));
  text_.erase(0, skipped);
}

bool RecordReader::begins_lines(size_t at) const {
  const auto text = std::string_view(text_);
  while (at < text.size() && text[at] != '{') {
    const size_t end = std::min(text.find('\n', at), text.size());
    try {
      JsonScanner scanner(text.substr(at, end - at));
      scanner.skip();
      scanner.expect_end();
    } catch (const JsonFault&) {
      return false;
    }
    at = std::min(text.find_first_not_of(kJsonSpace, end), text.size());
  }
  return at < text.size();
}

void RecordReader::refuse_indented(size_t at) {
  while (true) {
    const auto text = std::string_view(text_).substr(at);
    JsonScanner scanner(text);
    try {
      scanner.skip();
      if (text.find('\n') < static_cast<size_t>(scanner.byte())) break;
      return;
    } catch (const JsonFault& fault) {
      // What follows may mend a fault at the end, and only such a one.
      constexpr size_t kCutOff = 16;
      const bool is_cut = static_cast<size_t>(fault.byte()) + kCutOff >= text.size();
      if (!is_cut || text.size() > max_record_ || !read_block()) return;
    }
  }
  const auto text = std::string_view(text_).substr(at);
  std::string way = "; write each on one line, as jq -c . FILE does, or all as one list";
  JsonScanner scanner(text);
  const RecordSketch object = sketch_record(scanner);
  if (!match_format(object, kAutoFormat)) {
    way = concat(way, "; its fields are ", describe_fields(object, JsonScanner(text), true));
  }
  throw_invalid(where_, ": expected an array of records or one record per line, got an object of ",
                "several lines [", excerpt(text), "]", way);
}

void RecordReader::refuse_start(size_t at) const {
  const auto text = std::string_view(text_);
  const std::string_view before = text.substr(0, at);
  const size_t line_begin = before.rfind('\n') + 1;
  const auto column = static_cast<int64_t>(at - line_begin) + (line_begin == 0 ? column_ : 1);
  const std::string place =
      concat(" [line ", line_ + std::count(before.begin(), before.end(), '\n'), ", column ", column,
             ": ", excerpt(text.substr(at)), "]");
  require(!text.substr(at).starts_with("- ") && !text.substr(at).starts_with("---"), where_,
          ": expected an array of records or one record per line, got YAML or other text", place,
          "; write it as JSON, as in docs/data_files.md");
  const ValueKind kind = [&] {
    try {
      return JsonScanner(text.substr(at), byte_ + static_cast<int64_t>(at)).peek();
    } catch (const JsonFault& fault) {
      const bool is_comment = text.substr(at).starts_with("//") ||
                              text.substr(at).starts_with("/*") ||
                              (text[at] == '#' && !text.substr(at).starts_with("#!"));
      throw_invalid(where_, ": ", fault.what(), place,
                    is_comment ? "; JSON has no comments: take them out" : "");
    }
  }();
  throw_invalid(where_, ": expected an array of records or one record per line, got ",
                describe(kind), place);
}

// Checks a record's size. Separators and white space around it do not count but have the same
// limit.
void RecordReader::check_size(size_t begin, size_t end, int64_t number, const char* more) const {
  if (end - begin <= max_record_) return;
  const std::string_view text = std::string_view(text_).substr(begin, end - begin);
  const size_t first = text.find_first_not_of(kBetween);
  const int64_t place = byte_ + static_cast<int64_t>(begin);
  require(first != text.npos, where_, ": white space of ", text.size(), " bytes", more,
          " from byte ", place, ", before record ", number, "; at most ", max_record_,
          " are read (--max_record_bytes); take it out");
  const size_t size = text.find_last_not_of(kBetween) + 1 - first;
  require(size <= max_record_, where_, ": record ", number, " has ", size, " bytes", more,
          " from byte ", place + static_cast<int64_t>(first), "; a record may have ", max_record_,
          " (--max_record_bytes): allow more, or divide it");
}

// Parses the beginning of a very long record. A surplus quote makes the file's rest look like a
// single record; this check finds the error before the whole file is in memory.
void RecordReader::check_json() const {
  constexpr int64_t kCutOff = 16;  // an error this close to the end may be due to the cut alone
  JsonScanner scanner(text_, byte_, 1);
  Conversation record;
  record.number = number_;
  try {
    scanner.resume_list(number_ == 0);
    if (scanner.next_item()) RecordParser().parse(scanner, record);
  } catch (const JsonFault& fault) {
    if (fault.byte() + kCutOff >= byte_ + static_cast<int64_t>(text_.size())) return;
    throw_invalid(where_, ": record ", number_, ": ", fault.what());
  }
}

void RecordReader::split(std::vector<RecordSlice>& slices) {
  if (is_array_) {
    array_.split(text_, is_over_, slices);
  } else {
    lines_.split(text_, is_over_, slices);
  }
  int64_t number = number_;
  for (const RecordSlice& slice : slices) {
    check_size(slice.begin, slice.end, number, "");
    number += slice.num_records;
  }
}

bool RecordReader::next(RecordChunk& chunk) {
  constexpr size_t kUsual = size_t{1} << 26;  // few records are longer than this
  chunk.slices.clear();
  if (!is_open_) {
    open();
    split(chunk.slices);
  }
  while (chunk.slices.empty()) {
    if (is_array_ ? array_.is_done() : is_over_ && text_.empty()) return false;
    if (!text_.empty()) {
      if (is_array_ && text_.size() >= std::min(kUsual, max_record_)) check_json();
      check_size(0, text_.size(), number_, " and more");
    }
    read_block();
    split(chunk.slices);
  }
  take_chunk(chunk);
  return true;
}

void RecordReader::pass(std::string_view text) {
  byte_ += static_cast<int64_t>(text.size());
  line_ += std::count(text.begin(), text.end(), '\n');
  const size_t line_end = text.rfind('\n');
  const bool stays = line_end == text.npos;
  column_ =
      static_cast<int64_t>(stays ? text.size() : text.size() - line_end) + (stays ? column_ : 0);
}

void RecordReader::take_chunk(RecordChunk& chunk) {
  const size_t cut = chunk.slices.back().end;
  std::string rest = text_.substr(cut);
  chunk.text = std::move(text_);
  chunk.text.resize(cut);
  text_ = std::move(rest);
  chunk.is_array = is_array_;
  chunk.first_byte = byte_;
  chunk.first_line = line_;
  chunk.first_column = column_;
  chunk.first_number = number_;
  chunk.num_records = 0;
  for (const RecordSlice& slice : chunk.slices) chunk.num_records += slice.num_records;
  pass(chunk.text);
  number_ += chunk.num_records;
}

}  // namespace fastsft
