#include "chat/record_pieces.h"

#include <algorithm>
#include <iterator>

#include "core/error.h"

namespace fastsft {
namespace {

constexpr int64_t kAround = 6;  // ids that FastChat adds per text for role and separators

struct Piece {
  size_t begin = 0;
  size_t end = 0;
};

std::optional<Role> role_of(const RoleNames& roles, const Message& message) {
  const bool has_text = message.value.is_text() || message.value.is_text_parts;
  if (message.kind != ValueKind::kObject || !message.from.is_text() || !has_text) return {};
  return roles.find(message.from.text);
}

// Returns the first turn's index; null if the conversation cannot be split.
std::optional<size_t> find_first_turn(const RoleNames& roles, const Conversation& conversation) {
  const auto& messages = conversation.messages;
  const bool is_list = conversation.read_fault == ReadError::kNone && !messages.empty() &&
                       conversation.shape != RecordShape::kText;
  if (!is_list) return {};
  const size_t first = role_of(roles, messages.front()) == Role::kSystem ? 1 : 0;
  if (first == messages.size()) return {};
  const size_t shift = role_of(roles, messages[first]) == Role::kAssistant ? 1 : 0;
  for (size_t i = first; i < messages.size(); ++i) {
    const Role expected = (i - first + shift) % 2 == 0 ? Role::kUser : Role::kAssistant;
    if (role_of(roles, messages[i]) != expected) return {};
  }
  return first;
}

int64_t count_ids(const Tokenizer& tokenizer, const Message& message, std::vector<Token>& tokens) {
  tokens.clear();
  tokenizer.encode(message.value.text, SpecialText::kFind, tokens);
  return static_cast<int64_t>(tokens.size()) + tokenizer.adds_bos() + tokenizer.adds_eos() +
         kAround;
}

// Groups turns into pieces, step by step like FastChat's loop.
std::vector<Piece> find_pieces(const std::vector<int64_t>& turns, int64_t max_length) {
  std::vector<Piece> pieces;
  size_t start = 0;
  int64_t length = 0;
  for (size_t i = 0; i < turns.size(); ++i) {
    if (length + turns[i] > max_length) {
      if (i > start) pieces.push_back({start, i});
      start = i;
      length = 0;
    } else if (i + 1 == turns.size()) {
      pieces.push_back({start, i + 1});
    }
    length += turns[i];
  }
  return pieces;
}

Conversation cut(Conversation& whole, size_t first, Piece piece) {
  Conversation part = without_messages(whole);
  if (!whole.id.empty()) part.id = concat(whole.id, "_", 2 * piece.begin);
  part.messages.assign(whole.messages.begin(), whole.messages.begin() + static_cast<long>(first));
  const auto begin = whole.messages.begin() + static_cast<long>(first);
  std::move(begin + static_cast<long>(2 * piece.begin), begin + static_cast<long>(2 * piece.end),
            std::back_inserter(part.messages));
  return part;
}

}  // namespace

void split_overlong(const Tokenizer& tokenizer, const RoleNames& roles, int64_t max_length,
                    Conversation& conversation, std::vector<Conversation>& result) {
  const auto first = find_first_turn(roles, conversation);
  if (!first) return result.push_back(std::move(conversation));
  if (role_of(roles, conversation.messages[*first]) == Role::kAssistant) {
    return leave_out(conversation, "starts with the assistant, which FastChat's split leaves out",
                     result);
  }
  const size_t total = conversation.messages.size(), num_turns = (total - *first) / 2;
  std::vector<int64_t> turns;
  std::vector<Token> tokens;
  for (size_t i = 0; i < num_turns; ++i) {
    const Message* pair = &conversation.messages[*first + 2 * i];
    turns.push_back(count_ids(tokenizer, pair[0], tokens) + count_ids(tokenizer, pair[1], tokens));
  }
  const std::vector<Piece> pieces = find_pieces(turns, max_length);
  if (pieces.empty()) {
    return leave_out(conversation, "its one turn is too long, which FastChat's split leaves out",
                     result);
  }
  const size_t end = *first + 2 * pieces.back().end;
  if (pieces.size() == 1 && end == total) return result.push_back(std::move(conversation));
  for (const Piece& piece : pieces) {
    result.push_back(cut(conversation, *first, piece));
    const size_t begin = *first + 2 * piece.begin;
    if (pieces.size() == 1) continue;
    own_notes(result.back()).split =
        concat("messages ", begin, " to ", *first + 2 * piece.end - 1, " of ", total);
  }
  if (end < total) {
    const std::string lost = total - end == 1 ? concat("message ", end, " is")
                                              : concat("messages ", end, " to ", total - 1, " are");
    own_notes(result.back()).lost = lost + " in no piece, as FastChat splits";
  }
}

namespace {

constexpr size_t kMostReplies = 1024;
constexpr size_t kMostBytes = size_t{64} << 20;  // total size for all pieces from a record

// Removes thoughts, because templates remove them from earlier replies.
std::string without_thoughts(std::string_view text) {
  constexpr std::string_view kBegin = "<think>", kEnd = "</think>";
  std::string kept;
  for (;;) {
    const size_t begin = text.find(kBegin);
    const size_t end = begin == text.npos ? text.npos : text.find(kEnd, begin);
    kept += text.substr(0, end == text.npos ? text.npos : begin);
    if (end == text.npos) return kept;
    text.remove_prefix(end + kEnd.size());
  }
}

size_t bytes_of(const Message& message) {
  size_t bytes = sizeof(Message) + message.value.text.size();
  if (const MessageExtras* extras = message.extras.get(); extras != nullptr) {
    bytes += extras->calls.size() + extras->reasoning.size();
  }
  return bytes;
}

// Returns how many replies can be in a row. Since a template may strip texts and tokens from
// neighbouring texts may merge, the limit is generous: the texts before a reply, tokenised alone,
// may have four times the row's token count.
size_t count_within(const Tokenizer& tokenizer, const std::vector<size_t>& ends, int64_t max_length,
                    const Conversation& conversation) {
  std::vector<Token> tokens;
  int64_t before = 0;
  size_t next = 0;
  for (size_t reply = 0; reply < ends.size(); ++reply) {
    for (; next < ends[reply]; ++next) {
      tokens.clear();
      tokenizer.encode(without_thoughts(conversation.messages[next].value.text), SpecialText::kFind,
                       tokens);
      before += static_cast<int64_t>(tokens.size());
    }
    if (before > 4 * max_length) return reply;
  }
  return ends.size();
}

// Marks `part` as the piece that ends with `reply`, and its earlier replies as not learned.
void train_only(size_t reply, const std::vector<size_t>& ends, Conversation& part) {
  own_notes(part).ends_with_reply = true;
  for (size_t i = 0; i < reply; ++i) part.messages[ends[i]].train = ValueKind::kFalse;
}

// Returns the total size for the pieces that end with the first `count` replies.
size_t bytes_of_pieces(const Conversation& conversation, const std::vector<size_t>& ends,
                       size_t count) {
  size_t total = 0, next = 0;
  size_t upto = notes_of(conversation).tools.size() + notes_of(conversation).variables.size();
  for (size_t reply = 0; reply < count; ++reply) {
    for (; next <= ends[reply]; ++next) upto += bytes_of(conversation.messages[next]);
    total += upto;
  }
  return total;
}

Conversation up_to(const Conversation& whole, const std::vector<size_t>& ends, size_t reply) {
  const size_t end = ends[reply];
  Conversation part = without_messages(whole);
  if (!whole.id.empty()) part.id = concat(whole.id, "_", end);
  part.messages.assign(whole.messages.begin(), whole.messages.begin() + static_cast<long>(end) + 1);
  train_only(reply, ends, part);
  RecordNotes& notes = own_notes(part);
  notes.split = concat("reply ", reply + 1, " of ", ends.size(), ", in a row of its own");
  if (reply > 0) notes.lost.clear();  // the first piece reports the loss
  notes.told = reply == 0 ? 0 : ends[reply - 1] + 1;
  return part;
}

}  // namespace

bool has_earlier_thoughts(const Conversation& conversation) {
  const auto& messages = conversation.messages;
  const auto thinks = [](const Message& message) {
    const std::string& text = message.value.text;
    return text.find("<think>") != text.npos || text.find("</think>") != text.npos ||
           (message.extras != nullptr && !message.extras->reasoning.empty());
  };
  return !messages.empty() && std::any_of(messages.begin(), messages.end() - 1, thinks);
}

void split_replies(const DialogueBuilder& builder, const Tokenizer& tokenizer, int64_t max_length,
                   Conversation& conversation, std::vector<Conversation>& result) {
  const std::vector<size_t> ends =
      conversation.is_left_out ? std::vector<size_t>() : builder.reply_ends(conversation);
  if (ends.size() < 2) {
    own_notes(conversation).ends_with_reply = true;
    return result.push_back(std::move(conversation));
  }
  const size_t count = ends.size();
  const size_t within = count_within(tokenizer, ends, max_length, conversation);
  const size_t before_last = std::min(within, count - 1);
  if (before_last > kMostReplies || bytes_of_pieces(conversation, ends, before_last) > kMostBytes) {
    return leave_out(
        conversation,
        concat("each of its ", count, " replies would be a row of its own; expected at ", "most ",
               kMostReplies, ", and 64 MiB in all rows"),
        result);
  }
  for (size_t reply = 0; reply < before_last; ++reply) {
    result.push_back(up_to(conversation, ends, reply));
  }
  train_only(count - 1, ends, conversation);
  RecordNotes& notes = own_notes(conversation);
  notes.split = concat("reply ", count, " of ", count, ", in a row of its own");
  notes.told = before_last == 0 ? 0 : ends[before_last - 1] + 1;
  if (before_last > 0) notes.lost.clear();
  if (before_last + 1 < count) {
    notes.lost = concat("replies ", before_last + 1, " to ", count - 1,
                        " come after too much text for a row of ", max_length, " tokens");
  }
  if (!conversation.id.empty()) conversation.id = concat(conversation.id, "_", ends.back());
  result.push_back(std::move(conversation));
}

}  // namespace fastsft
