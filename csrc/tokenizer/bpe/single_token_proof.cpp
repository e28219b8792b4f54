#include "tokenizer/bpe/single_token_proof.h"

namespace fastsft {

SingleTokenProof::SingleTokenProof(const PairTable& pairs, size_t num_ids)
    : pairs_(&pairs), merges_(num_ids) {}

void SingleTokenProof::add_symbol(int32_t id) { merges_[id].rank = kSymbol; }

// Goes backwards from the moment before `left` and `right` merge, and undoes, one by one, the
// merges that made the two tokens at the border. If ranks are equal, the leftmost pair merges
// first: a merge on the border's left side comes before the pair across the border, a merge on its
// right side comes after that pair.
bool SingleTokenProof::is_crossed(int32_t left, int32_t right) const {
  while (true) {
    const Merge& last_left = merges_[left];
    const Merge& last_right = merges_[right];
    if (last_left.rank == kSymbol && last_right.rank == kSymbol) return false;
    const bool is_left_last = last_left.rank > last_right.rank;
    const int32_t rank = is_left_last ? last_left.rank : last_right.rank;
    if (is_left_last) {
      left = last_left.right;
    } else {
      right = last_right.left;
    }
    const PairTable::Join across = pairs_->find(left, right);
    if (!across.exists()) continue;
    const auto across_rank = static_cast<int32_t>(across.rank);
    if (across_rank < rank || (across_rank == rank && !is_left_last)) return true;
  }
}

void SingleTokenProof::add(int32_t left, int32_t right, PairTable::Join join) {
  const auto rank = static_cast<int32_t>(join.rank);
  const int32_t left_rank = merges_[left].rank;
  const int32_t right_rank = merges_[right].rank;
  if (contains(join.id) || left_rank == kUnproven || right_rank == kUnproven) return;
  if (left_rank >= rank || right_rank >= rank) return;
  const PairTable::Join known = pairs_->find(left, right);
  if (known.rank != join.rank || known.id != join.id) return;
  if (!is_crossed(left, right)) merges_[join.id] = {left, right, rank};
}

}  // namespace fastsft
