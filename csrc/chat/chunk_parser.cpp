#include "chat/chunk_parser.h"

#include <algorithm>

#include "chat/issue.h"
#include "core/error.h"

namespace fastsft {
namespace {

int64_t count_lines(std::string_view text) { return std::count(text.begin(), text.end(), '\n'); }

std::string_view view(const RecordChunk& chunk, const RecordSlice& slice) {
  return std::string_view(chunk.text).substr(slice.begin, slice.end - slice.begin);
}

// Returns the chunk's text before position `byte` of the file.
std::string_view before(const RecordChunk& chunk, int64_t byte) {
  return std::string_view(chunk.text).substr(0, static_cast<size_t>(byte - chunk.first_byte));
}

std::string_view without_end(std::string_view line) {
  return line.substr(0, line.find_last_not_of("\r\n") + 1);
}

// Returns the position at which an error's excerpt begins: the error itself, or shortly before the
// end if the line breaks off.
int64_t shown_from(std::string_view line, int64_t first_byte, int64_t fault) {
  constexpr size_t kBefore = 20;
  if (fault < first_byte + static_cast<int64_t>(line.size())) return fault;
  size_t at = line.size() - std::min(kBefore, line.size());
  // move to a character's beginning
  while (at < line.size() && (line[at] & 0xC0) == 0x80) ++at;
  return first_byte + static_cast<int64_t>(at);
}

}  // namespace

void ChunkParser::parse(const RecordChunk& chunk, const Share& share,
                        std::vector<Conversation>& records) {
  records.clear();
  int64_t number = chunk.first_number, line = chunk.first_line;
  for (const RecordSlice& slice : chunk.slices) {
    const bool skips = slice.num_records == 1 && share.copies(number) == 0;
    Conversation record;
    record.number = number;
    record.line = line;
    if (chunk.is_array && (!skips || slice.is_last)) {
      parse_items(chunk, slice, share, std::move(record), records);
    } else if (!chunk.is_array && !skips && slice.num_records != 0) {
      parse_line(chunk, slice, records.emplace_back(std::move(record)));
    }
    number += slice.num_records;
    line += count_lines(view(chunk, slice));
  }
}

void ChunkParser::parse_items(const RecordChunk& chunk, const RecordSlice& slice,
                              const Share& share, Conversation next,
                              std::vector<Conversation>& records) {
  const std::string_view text = view(chunk, slice);
  const int64_t first_byte = chunk.first_byte + static_cast<int64_t>(slice.begin);
  const int64_t line = next.line;
  JsonScanner scanner(text, first_byte, 1);
  try {
    scanner.resume_list(slice.is_first);
    while (slice.is_last || !scanner.at_end()) {
      if (!scanner.next_item()) return scanner.expect_end();
      const int64_t number = next.number;
      parser_.parse(scanner, next);
      next.line = line + count_lines(text.substr(0, static_cast<size_t>(next.byte - first_byte)));
      if (share.copies(number) != 0) records.push_back(std::move(next));
      next = Conversation();
      next.number = number + 1;
    }
  } catch (const JsonFault& fault) {
    fail(chunk, fault, next);
  }
}

void ChunkParser::parse_line(const RecordChunk& chunk, const RecordSlice& slice,
                             Conversation& record) {
  const std::string_view line = without_end(view(chunk, slice));
  const int64_t number = record.number, line_number = record.line;
  const int64_t first_byte = chunk.first_byte + static_cast<int64_t>(slice.begin);
  try {
    JsonScanner scanner(line, first_byte, 0, "the line");
    parser_.parse(scanner, record);
    scanner.expect_end();
  } catch (const JsonFault& fault) {
    std::string id = std::move(record.id);
    record = Conversation();
    record.id = std::move(id);
    record.number = number;
    record.line = line_number;
    record.byte = shown_from(line, first_byte, fault.byte());
    record.read_fault =
        fault.kind() == JsonFault::Kind::kUtf8 ? ReadError::kInvalidUtf8 : ReadError::kNotJson;
    record.read_reason = fault.what();
    const auto at = static_cast<size_t>(fault.byte() - first_byte);
    if (at > 0 && at < line.size() && line[at] == '{' && line[at - 1] == '}') {
      record.read_reason += ", got a second record: put a line break between the two";
    }
  }
}

void ChunkParser::fail(const RecordChunk& chunk, const JsonFault& fault,
                       const Conversation& record) const {
  constexpr size_t kBefore = 20;
  const std::string_view text = before(chunk, fault.byte());
  const size_t line_begin = text.rfind('\n') + 1;
  const size_t from = text.size() - std::min(kBefore, text.size() - line_begin);
  const std::string named = record.id.empty() ? "" : concat(" (id ", printable(record.id), ")");
  const int64_t column =
      static_cast<int64_t>(text.size() - line_begin) + (line_begin == 0 ? chunk.first_column : 1);
  throw_invalid(where_, ": record ", record.number, named, ": ", fault.what(), " [line ",
                chunk.first_line + count_lines(text), ", column ", column, ": ",
                excerpt(std::string_view(chunk.text).substr(from)), "]");
}

FormatChoice choose_format(const RecordChunk& chunk, const std::string& name) {
  check_format_name(name);
  std::optional<FormatChoice> found;
  for (const RecordSlice& slice : chunk.slices) {
    JsonScanner scanner(view(chunk, slice), 0, chunk.is_array ? 1 : 0);
    try {
      if (chunk.is_array) scanner.resume_list(slice.is_first);
      while (!found && slice.num_records != 0 && !scanner.at_end()) {
        if (chunk.is_array && !scanner.next_item()) break;
        found = match_format(sketch_record(scanner), name);
        if (!chunk.is_array) break;
      }
    } catch (const JsonFault&) {  // the parser reports broken JSON later
    }
    if (found) return *found;
  }
  return name == kAutoFormat ? FormatChoice() : FormatChoice{name, ""};
}

Place find_place(const RecordChunk& chunk, const Conversation& record, int64_t message) {
  const auto index = static_cast<size_t>(std::max<int64_t>(message, 0));
  const bool is_inside = message >= 0 && index < record.messages.size();
  const int64_t byte = is_inside ? record.messages[index].byte : record.byte;
  const std::string_view text = before(chunk, byte);
  return {chunk.first_line + count_lines(text), byte,
          excerpt(std::string_view(chunk.text).substr(text.size()))};
}

}  // namespace fastsft
