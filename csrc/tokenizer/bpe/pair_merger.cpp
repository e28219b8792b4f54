#include "tokenizer/bpe/pair_merger.h"

#include <algorithm>

#include "tokenizer/bpe/merge_lanes.h"

namespace fastsft {
void PairMerger::merge(std::vector<WordToken>& tokens) {
  if (tokens.size() < 2) return;
  if (tokens.size() <= MergeLanes<16>::kMaxTokens) return merge_short<16>(tokens);
  if (tokens.size() <= MergeLanes<64>::kMaxTokens) return merge_short<64>(tokens);
  merge_long(tokens);
}

template <size_t kLanes>
void PairMerger::merge_short(std::vector<WordToken>& tokens) const {
  MergeLanes<kLanes> lanes;
  lanes.begin(*table_, tokens);
  while (lanes.join_best(*table_)) continue;
  tokens.clear();
  lanes.visit_tokens([&](int32_t id, uint32_t size) { tokens.push_back({id, size}); });
}

bool PairMerger::is_later(const Candidate& a, const Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
}

void PairMerger::push_candidate(const std::vector<WordToken>& tokens, int32_t left, int32_t right) {
  if (left < 0 || right >= static_cast<int32_t>(tokens.size())) return;
  const PairTable::Join join = table_->find(tokens[left].id, tokens[right].id);
  if (!join.exists()) return;
  heap_.push_back({join.rank, left, right, join.id, tokens[left].size + tokens[right].size});
  std::push_heap(heap_.begin(), heap_.end(), is_later);
}

void PairMerger::join(std::vector<WordToken>& tokens, const Candidate& candidate) {
  const auto [rank, left, right, id, size] = candidate;
  tokens[left] = {id, size};
  tokens[right].size = 0;
  next_[left] = next_[right];
  if (next_[left] < static_cast<int32_t>(tokens.size())) previous_[next_[left]] = left;
  push_candidate(tokens, previous_[left], left);
  push_candidate(tokens, left, next_[left]);
}

void PairMerger::merge_long(std::vector<WordToken>& tokens) {
  const auto count = static_cast<int32_t>(tokens.size());
  previous_.resize(count);
  next_.resize(count);
  heap_.clear();
  for (int32_t i = 0; i < count; ++i) {
    previous_[i] = i - 1;
    next_[i] = i + 1;
    push_candidate(tokens, i - 1, i);
  }
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), is_later);
    const Candidate best = heap_.back();
    heap_.pop_back();
    const bool gone = tokens[best.left].size == 0 || tokens[best.right].size == 0;
    if (!gone && tokens[best.left].size + tokens[best.right].size == best.size) join(tokens, best);
  }
  std::erase_if(tokens, [](const WordToken& token) { return token.size == 0; });
}

}  // namespace fastsft
