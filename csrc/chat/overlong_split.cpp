#include <algorithm>
#include <iterator>

#include "chat/record_pieces.h"
#include "core/error.h"

namespace fastsft {
namespace {

constexpr int64_t kAround = 6;  // ids that FastChat counts for role and separators

struct Piece {
  size_t begin = 0;
  size_t end = 0;
};

std::optional<Role> role_of(const RoleNames& roles, const Message& message) {
  const bool has_text = message.value.is_text() || message.value.is_text_parts;
  if (message.kind != ValueKind::kObject || !message.from.is_text() || !has_text) return {};
  return roles.find(message.from.text);
}

// Where the turns begin; null for what cannot be split.
std::optional<size_t> find_first_turn(const RoleNames& roles, const Conversation& conversation) {
  const auto& messages = conversation.messages;
  const bool is_list = conversation.read_fault == ReadFault::kNone && !messages.empty() &&
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

// FastChat's loop, step by step.
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

}  // namespace fastsft
