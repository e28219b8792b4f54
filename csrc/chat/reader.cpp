#include "chat/reader.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "core/error.h"

namespace fastsft {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// Blanked, not removed, so that byte numbers are those of the file.
std::string blank_mark(std::string text) {
  if (text.starts_with(kByteOrderMark)) text.replace(0, kByteOrderMark.size(), 3, ' ');
  return text;
}

}  // namespace

std::string read_data_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file || std::filesystem::is_directory(path))
    throw_runtime("cannot read the data file ", path);
  std::string text(std::filesystem::file_size(path), '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.gcount() != static_cast<std::streamsize>(text.size())) {
    throw_runtime("cannot read the data file ", path, " to its end");
  }
  return text;
}

ConversationReader::ConversationReader(std::string text, std::string where)
    : text_(blank_mark(std::move(text))), where_(std::move(where)), scanner_(text_) {
  try {
    const ValueKind kind = scanner_.peek();
    is_array_ = kind == ValueKind::kArray;
    require(is_array_ || kind == ValueKind::kObject, where_,
            ": expected an array of records or one record per line, got ", describe(kind));
    if (is_array_) scanner_.enter_array();
  } catch (const JsonFault& fault) {
    throw_invalid(where_, ": ", fault.what());
  }
}

bool ConversationReader::next(Conversation& conversation) {
  conversation.number = number_;
  const bool more = is_array_ ? next_item(conversation) : next_line(conversation);
  number_ += more;
  return more;
}

bool ConversationReader::next_item(Conversation& conversation) try {
  if (!scanner_.next_item()) {
    scanner_.expect_end();
    return false;
  }
  parser_.parse(scanner_, conversation);
  return true;
} catch (const JsonFault& fault) {
  throw_invalid(where_, ": ", fault.what());
}

bool ConversationReader::next_line(Conversation& conversation) {
  while (at_ < text_.size()) {
    const size_t end = std::min(text_.find('\n', at_), text_.size());
    const std::string_view line = std::string_view(text_).substr(at_, end - at_);
    const size_t begin = at_;
    at_ = end + 1;
    conversation.line = ++line_;
    conversation.byte = static_cast<int64_t>(begin);
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    read_line(line, conversation);
    return true;
  }
  return false;
}

void ConversationReader::read_line(std::string_view line, Conversation& conversation) {
  const int64_t begin = conversation.byte;
  try {
    JsonScanner scanner(line, begin, 0, "the line");
    parser_.parse(scanner, conversation);
    scanner.expect_end();
  } catch (const JsonFault& fault) {
    const int64_t number = conversation.number;
    conversation = Conversation();
    conversation.number = number;
    conversation.line = line_;
    conversation.byte = begin;
    conversation.read_fault = fault.kind();
    conversation.read_reason = fault.what();
  }
}

}  // namespace fastsft
