#include "tokenizer/pair_merger.h"

#include <algorithm>

namespace fastsft {
namespace {

constexpr size_t kShort = 32;

}  // namespace

void PairMerger::merge(std::vector<WordToken>& tokens) {
  if (tokens.size() <= kShort) {
    merge_short(tokens);
  } else {
    merge_long(tokens);
  }
}

void PairMerger::merge_short(std::vector<WordToken>& tokens) {
  joins_.clear();
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    joins_.push_back(table_->find(tokens[i].id, tokens[i + 1].id));
  }
  while (!joins_.empty()) {
    const auto best =
        std::min_element(joins_.begin(), joins_.end(),
                         [](PairTable::Join a, PairTable::Join b) { return a.rank < b.rank; });
    if (best->rank == PairTable::kNone) return;
    const size_t at = best - joins_.begin();
    tokens[at] = {best->id, tokens[at].size + tokens[at + 1].size};
    tokens.erase(tokens.begin() + at + 1);
    joins_.erase(best);
    if (at > 0) joins_[at - 1] = table_->find(tokens[at - 1].id, tokens[at].id);
    if (at < joins_.size()) joins_[at] = table_->find(tokens[at].id, tokens[at + 1].id);
  }
}

bool PairMerger::is_later(const Candidate& a, const Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
}

void PairMerger::push_candidate(const std::vector<WordToken>& tokens, int32_t left, int32_t right) {
  if (left < 0 || right >= static_cast<int32_t>(tokens.size())) return;
  const PairTable::Join join = table_->find(tokens[left].id, tokens[right].id);
  if (join.rank == PairTable::kNone) return;
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
