#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "model/context_heads.h"
#include "shard/communicator.h"

namespace fastsft {

// Exchanges tokens for heads between context ranks, as DeepSpeed-Ulysses does
// (https://arxiv.org/abs/2309.14509). Outside attention a rank has all heads of its tokens; in
// attention it has all tokens of its heads. Collective over the context ranks.
class HeadExchange {
 public:
  // `tokens`: the whole micro-batch's number of tokens. `memory`: a buffer with `memory_size`
  // elements, which holds one part of this rank's tokens for each context rank.
  HeadExchange(Communicator& ranks, const ContextHeads& heads, int64_t tokens,
               const at::Tensor& memory);
  static int64_t memory_size(const ContextHeads& heads, int64_t own_tokens) {
    return own_tokens * heads.ranks() * heads.qkv_size();
  }

  // The tensors' columns: the query heads alone, or queries, keys and values.
  enum class Columns { kQuery, kQkv };
  // Fills `heads` [all tokens, this rank's columns] from `rows` [own tokens, all columns].
  void to_heads(const at::Tensor& rows, const at::Tensor& heads, Columns columns,
                const std::string& what) const;
  // Fills `rows` from `heads`. A key or value head of several ranks gets the sum of theirs.
  void to_tokens(const at::Tensor& heads, const at::Tensor& rows, Columns columns,
                 const std::string& what) const;

  const ContextHeads& heads() const { return heads_; }

 private:
  int64_t columns_of_rank(Columns columns) const;
  // Calls `work(columns of rows, columns of the rank's part)` for the ranges of columns that
  // context rank `rank` has.
  template <typename Work>
  void for_ranges(const at::Tensor& rows, int64_t rank, Columns columns, const Work& work) const;
  // Returns the part of `memory` that is exchanged with `rank`: [own tokens, columns].
  at::Tensor part(int64_t rank, int64_t columns) const;
  std::vector<int64_t> counts_by_tokens(int64_t columns) const;
  std::vector<int64_t> counts_by_heads(int64_t columns) const;

  Communicator& ranks_;
  const ContextHeads& heads_;
  int64_t tokens_, own_tokens_;
  at::Tensor memory_;
};

}  // namespace fastsft
