#include "tokenizer/pair_merger.h"

#include <algorithm>
#include <array>

namespace fastsft {
namespace {

constexpr int kPositionBits = 6;  // of the 28 that a rank and a position take
constexpr int32_t kNoPair = INT32_MAX;

// The pairs of up to kLanes - 2 tokens. A pair is its rank and, for the leftmost of equals, the
// position of its left token. Joined tokens keep the position of their first one. A neighbour that
// joins with nothing stands at either end, so that nothing depends on where a pair lies.
template <size_t kLanes>
class Lanes {
 public:
  Lanes(const PairTable& table, const std::vector<WordToken>& tokens) : table_(table) {
    const size_t count = tokens.size();
    pairs_.fill(kNoPair);
    ids_[0] = PairTable::kNothing;
    uint32_t size = 0;
    for (size_t i = 0; i < count; ++i) {
      ids_[i + 1] = tokens[i].id;
      begins_[i + 1] = size;
      size += tokens[i].size;
    }
    ids_[count + 1] = PairTable::kNothing;
    begins_[count + 1] = size;
    there_ = ~uint64_t{0} >> (62 - count);
    for (size_t i = 1; i < count; ++i) set_pair(i, table_.find_near(ids_[i], ids_[i + 1]));
  }

  bool join_best() {
    const int32_t best = find_best();
    if (best == kNoPair) return false;
    const size_t at = best & ((1 << kPositionBits) - 1);
    const uint64_t behind = there_ & (~uint64_t{1} << at);
    const size_t next = __builtin_ctzll(behind);
    const size_t after = __builtin_ctzll(behind & (behind - 1));
    const size_t before = 63 - __builtin_clzll(there_ & ((uint64_t{1} << at) - 1));
    ids_[at] = joined_[at];
    there_ ^= uint64_t{1} << next;
    pairs_[next] = kNoPair;
    const PairTable::Join with_after = table_.find(ids_[at], ids_[after]);
    const PairTable::Join with_before = table_.find(ids_[before], ids_[at]);
    set_pair(at, with_after);
    set_pair(before, with_before);
    return true;
  }

  void list(std::vector<WordToken>& tokens) const {
    size_t count = 0;
    size_t at = 0;
    for (uint64_t left = there_ & (there_ - 1); (left & (left - 1)) != 0; ++count) {
      at = __builtin_ctzll(left);
      left &= left - 1;
      tokens[count] = {ids_[at], begins_[__builtin_ctzll(left)] - begins_[at]};
    }
    tokens.resize(count);
  }

 private:
  void set_pair(size_t at, PairTable::Join join) {
    const auto pair = static_cast<int32_t>(join.rank << kPositionBits | at);
    pairs_[at] = join.exists() ? pair : kNoPair;
    joined_[at] = join.id;
  }
  // In four rows, which do not wait for each other.
  int32_t find_best() const {
    std::array<int32_t, 4> best = {pairs_[0], pairs_[1], pairs_[2], pairs_[3]};
    for (size_t i = 4; i < kLanes; i += 4) {
      for (size_t j = 0; j < 4; ++j) best[j] = std::min(best[j], pairs_[i + j]);
    }
    return lower(lower(best[0], best[1]), lower(best[2], best[3]));
  }

  // The compilers make a branch of std::min here, which nobody can predict.
  static int32_t lower(int32_t a, int32_t b) {
    return b ^ ((a ^ b) & -static_cast<int32_t>(a < b));
  }

  const PairTable& table_;
  uint64_t there_;
  alignas(64) std::array<int32_t, kLanes> pairs_;
  std::array<int32_t, kLanes> joined_;
  std::array<int32_t, kLanes + 1> ids_;
  std::array<uint32_t, kLanes + 1> begins_;
};

}  // namespace

void PairMerger::merge(std::vector<WordToken>& tokens) {
  if (tokens.size() < 2) return;
  if (tokens.size() <= 15) return merge_short<16>(tokens);
  if (tokens.size() <= 62) return merge_short<64>(tokens);
  merge_long(tokens);
}

template <size_t kLanes>
void PairMerger::merge_short(std::vector<WordToken>& tokens) const {
  Lanes<kLanes> lanes(*table_, tokens);
  while (lanes.join_best()) continue;
  lanes.list(tokens);
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
