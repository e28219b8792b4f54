#include "tokenizer/merge_table.h"

#include <algorithm>
#include <bit>

#include "core/utf8.h"

namespace fastsft {
namespace {

uint32_t pack_character(std::string_view character) {
  uint32_t packed = 0;
  for (const char byte : character) packed = packed << 8 | static_cast<uint8_t>(byte);
  return packed;
}

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// Equal scores get equal ranks: only the score orders merges, then the position.
std::vector<int32_t> rank_pieces(const std::vector<Piece>& pieces) {
  std::vector<float> scores;
  for (const Piece& piece : pieces) scores.push_back(piece.score);
  std::sort(scores.begin(), scores.end(), std::greater<>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  std::vector<int32_t> ranks;
  for (const Piece& piece : pieces) {
    const auto at = std::lower_bound(scores.begin(), scores.end(), piece.score, std::greater<>());
    ranks.push_back(static_cast<int32_t>(at - scores.begin()));
  }
  return ranks;
}

// U+2581 after anything but U+2581.
bool has_inner_space_mark(std::string_view text) {
  while (text.starts_with(kSpaceMark)) text.remove_prefix(kSpaceMark.size());
  return text.find(kSpaceMark) != std::string_view::npos;
}

}  // namespace

MergeTable::MergeTable(const SentencePieceModel& model)
    : num_pieces_(static_cast<int32_t>(model.pieces.size())), slots_(1 << 16) {
  ascii_.fill(kUnknown);
  number_characters(model);
  add_splits(model);
  ascii_[' '] = characters_.at(pack_character(kSpaceMark));
}

void MergeTable::number_characters(const SentencePieceModel& model) {
  for (int32_t id = 0; id < num_pieces_; ++id) {
    const Piece& piece = model.pieces[id];
    if (piece.type != PieceType::kNormal || piece.text.size() != utf8_char_size(piece.text[0]))
      continue;
    characters_[pack_character(piece.text)] = id;
  }
  int32_t next = num_pieces_;
  for (const Piece& piece : model.pieces) {
    if (piece.type != PieceType::kNormal) continue;
    cuts_before_spaces_ &= !has_inner_space_mark(piece.text);
    for (size_t at = 0; at < piece.text.size(); at += utf8_char_size(piece.text[at])) {
      const std::string_view text = piece.text;
      const uint32_t packed = pack_character(text.substr(at, utf8_char_size(text[at])));
      if (characters_.emplace(packed, next).second) ++next;
    }
  }
  for (const auto& [packed, symbol] : characters_) {
    if (packed < 128) ascii_[packed] = symbol;
  }
}

void MergeTable::add_splits(const SentencePieceModel& model) {
  std::unordered_map<std::string_view, int32_t> ids;
  ids.reserve(model.pieces.size());
  for (int32_t id = 0; id < num_pieces_; ++id) {
    if (model.pieces[id].type == PieceType::kNormal) ids[model.pieces[id].text] = id;
  }
  const auto symbol_of = [&](std::string_view text) {
    if (text.size() == utf8_char_size(text[0])) return characters_.at(pack_character(text));
    const auto found = ids.find(text);
    return found == ids.end() ? kUnknown : found->second;
  };
  const std::vector<int32_t> ranks = rank_pieces(model.pieces);
  for (const auto& [text, id] : ids) {
    for (size_t at = utf8_char_size(text[0]); at < text.size(); at += utf8_char_size(text[at])) {
      const int32_t left = symbol_of(text.substr(0, at));
      if (left == kUnknown) continue;
      const int32_t right = symbol_of(text.substr(at));
      if (right != kUnknown) insert(pair_key(left, right), {ranks[id], id});
    }
  }
}

size_t MergeTable::slot_of(uint64_t key) const {
  const int shift = 64 - std::countr_zero(slots_.size());
  size_t slot = key * 0x9E3779B97F4A7C15ull >> shift;
  while (slots_[slot].key != key && slots_[slot].key != kEmpty)
    slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

void MergeTable::insert(uint64_t key, Merge merge) {
  if (++num_used_ * 2 > slots_.size()) {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.key != kEmpty) slots_[slot_of(slot.key)] = slot;
    }
  }
  slots_[slot_of(key)] = {key, merge};
}

int32_t MergeTable::find_character(std::string_view character) const {
  const auto lead = static_cast<uint8_t>(character[0]);
  if (lead < 128) return ascii_[lead];
  const auto found = characters_.find(pack_character(character));
  return found == characters_.end() ? kUnknown : found->second;
}

Merge MergeTable::find(int32_t left, int32_t right) const {
  if (left == kUnknown || right == kUnknown) return {};
  return slots_[slot_of(pair_key(left, right))].merge;
}

}  // namespace fastsft
