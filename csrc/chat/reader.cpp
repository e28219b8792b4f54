#include "chat/reader.h"

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

ConversationReader::ConversationReader(std::string text, const std::string& where)
    : text_(blank_mark(std::move(text))), scanner_(text_, where) {
  const ValueKind kind = scanner_.peek();
  require(kind == ValueKind::kArray, where, ": expected an array of records, got ", describe(kind),
          kind == ValueKind::kObject
              ? "; one record per line (JSONL) is not supported yet: wrap the records in [ ]"
              : "");
  scanner_.enter_array();
}

bool ConversationReader::next(Conversation& conversation) {
  if (!scanner_.next_item()) {
    scanner_.expect_end();
    return false;
  }
  read_record(conversation);
  return true;
}

void ConversationReader::read_record(Conversation& conversation) {
  conversation = Conversation();
  conversation.messages_kind = ValueKind::kMissing;
  conversation.kind = scanner_.peek();
  if (conversation.kind != ValueKind::kObject) return scanner_.skip();
  scanner_.enter_object();
  while (scanner_.next_key(key_)) {
    if (key_ == "conversations") {
      read_messages(conversation);
    } else if (key_ == "id") {
      const ValueKind kind = scanner_.peek();
      conversation.id = kind == ValueKind::kString ? scanner_.read_value().text
                                                   : std::string(scanner_.read_raw());
    } else {
      scanner_.skip();
    }
  }
}

void ConversationReader::read_messages(Conversation& conversation) {
  conversation.messages.clear();
  conversation.messages_kind = scanner_.peek();
  if (conversation.messages_kind != ValueKind::kArray) {
    conversation.messages_empty = !scanner_.read_value().is_true;
    return;
  }
  scanner_.enter_array();
  while (scanner_.next_item()) read_message(conversation.messages.emplace_back());
  conversation.messages_empty = conversation.messages.empty();
}

void ConversationReader::read_message(Message& message) {
  message.kind = scanner_.peek();
  if (message.kind != ValueKind::kObject) return scanner_.skip();
  scanner_.enter_object();
  while (scanner_.next_key(key_)) {
    if (key_ == "from") {
      message.from = scanner_.read_value();
    } else if (key_ == "value") {
      message.value = scanner_.read_value();
    } else {
      scanner_.skip();
    }
  }
}

}  // namespace fastsft
