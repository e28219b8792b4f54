#include "tokenizer/merge_table.h"

#include <algorithm>

#include "core/utf8.h"

namespace fastsft {
namespace {

constexpr char32_t kMark = 0x2581;
constexpr size_t kFirstSlots = 1 << 12;

}  // namespace

MergeTable::MergeTable(const MergeRules& rules)
    : num_pieces_(rules.num_pieces), merges_(kFirstSlots), neighbours_(kFirstSlots) {
  int32_t num_symbols = num_pieces_;
  for (const auto& [character, symbol] : rules.characters) {
    num_symbols = std::max(num_symbols, symbol + 1);
    if (character != U' ') characters_.add(character, symbol);
  }
  characters_.add(U' ', characters_.find(kMark));
  size_t used = 0;
  for (const auto& [left, right, rank, symbol] : rules.rules) {
    insert(merges_, used, pair_key(left, right), {rank, symbol});
  }
  is_followed_.resize(num_symbols);
  is_preceded_.resize(num_symbols);
  used = 0;
  for (const std::string_view text : rules.merged) add_neighbours(text, used);
}

void MergeTable::add_neighbours(std::string_view text, size_t& used) {
  char32_t before = utf8_code_point(text, 0);
  bool only_marks = before == kMark;
  for (size_t at = utf8_char_size(text[0]); at < text.size(); at += utf8_char_size(text[at])) {
    const char32_t character = utf8_code_point(text, at);
    const int32_t left = characters_.find(before);
    const int32_t right = characters_.find(character);
    before = character;
    cuts_at_every_space_ &= character != kMark;
    cuts_before_spaces_ &= only_marks || character != kMark;
    only_marks &= character == kMark;
    if ((left | right) < 0) continue;
    is_followed_[left] = 1;
    is_preceded_[right] = 1;
    insert(neighbours_, used, pair_key(left, right), {0, 0});
  }
}

// The first merge of a pair stays.
void MergeTable::insert(std::vector<Slot>& slots, size_t& used, uint64_t key, Merge merge) {
  Slot& slot = slots[slot_of(slots, key)];
  if (slot.key == key) return;
  slot = {key, merge};
  if (++used * 2 <= slots.size()) return;
  std::vector<Slot> old(slots.size() * 2);
  old.swap(slots);
  for (const Slot& each : old) {
    if (each.key != kEmpty) slots[slot_of(slots, each.key)] = each;
  }
}

}  // namespace fastsft
