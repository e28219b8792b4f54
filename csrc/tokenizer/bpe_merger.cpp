#include "tokenizer/bpe_merger.h"

#include <algorithm>
#include <array>

namespace fastsft {
namespace {

constexpr size_t kShort = 32;

}  // namespace

void BpeMerger::merge(std::vector<Symbol>& symbols) {
  if (symbols.size() <= kShort) {
    merge_short(symbols);
  } else {
    merge_long(symbols);
  }
}

void BpeMerger::merge_short(std::vector<Symbol>& symbols) {
  std::array<Merge, kShort> merges;
  size_t count = symbols.size();
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = table_->find(symbols[i].id, symbols[i + 1].id);
  while (count > 1) {
    size_t at = 0;
    for (size_t i = 1; i + 1 < count; ++i) at = merges[i].rank < merges[at].rank ? i : at;
    if (!merges[at].exists()) break;
    symbols[at] = {merges[at].symbol, symbols[at].size + symbols[at + 1].size};
    --count;
    std::copy(symbols.begin() + at + 2, symbols.begin() + count + 1, symbols.begin() + at + 1);
    std::copy(merges.begin() + at + 1, merges.begin() + count, merges.begin() + at);
    if (at > 0) merges[at - 1] = table_->find(symbols[at - 1].id, symbols[at].id);
    if (at + 1 < count) merges[at] = table_->find(symbols[at].id, symbols[at + 1].id);
  }
  symbols.resize(count);
}

bool BpeMerger::is_later(const Candidate& a, const Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
}

void BpeMerger::push_candidate(const std::vector<Symbol>& symbols, int32_t left, int32_t right) {
  if (left < 0 || right >= static_cast<int32_t>(symbols.size())) return;
  const Merge merge = table_->find(symbols[left].id, symbols[right].id);
  if (!merge.exists()) return;
  heap_.push_back(
      {merge.rank, left, right, merge.symbol, symbols[left].size + symbols[right].size});
  std::push_heap(heap_.begin(), heap_.end(), is_later);
}

void BpeMerger::join(std::vector<Symbol>& symbols, const Candidate& candidate) {
  const auto [rank, left, right, symbol, size] = candidate;
  symbols[left] = {symbol, size};
  symbols[right].size = 0;
  next_[left] = next_[right];
  if (next_[left] < static_cast<int32_t>(symbols.size())) previous_[next_[left]] = left;
  push_candidate(symbols, previous_[left], left);
  push_candidate(symbols, left, next_[left]);
}

void BpeMerger::merge_long(std::vector<Symbol>& symbols) {
  const auto count = static_cast<int32_t>(symbols.size());
  previous_.resize(count);
  next_.resize(count);
  heap_.clear();
  for (int32_t i = 0; i < count; ++i) {
    previous_[i] = i - 1;
    next_[i] = i + 1;
    push_candidate(symbols, i - 1, i);
  }
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), is_later);
    const Candidate best = heap_.back();
    heap_.pop_back();
    const bool gone = symbols[best.left].size == 0 || symbols[best.right].size == 0;
    if (!gone && symbols[best.left].size + symbols[best.right].size == best.size)
      join(symbols, best);
  }
  std::erase_if(symbols, [](const Symbol& symbol) { return symbol.size == 0; });
}

}  // namespace fastsft
