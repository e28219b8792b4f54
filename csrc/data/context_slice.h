#pragma once

#include <cstdint>

#include "data/host_batch.h"

namespace fastsft {

// A range of a micro-batch's tokens, laid end to end.
struct TokenRange {
  int64_t begin = 0, end = 0;

  int64_t size() const { return end - begin; }
};

// Divides `tokens` among `ranks`, in rank order, with sizes that differ by at most 1.
TokenRange context_range(int64_t tokens, int64_t rank, int64_t ranks);

// Returns the part of a micro-batch that context rank `rank` computes: the ids, positions, keys and
// labels of its range of tokens. A conversation may lie on several ranks. Attention reads the whole
// micro-batch, so cu_seqlens, is_key and cuDNN's lists are copied unchanged.
HostBatch context_slice(const HostBatch& batch, int64_t rank, int64_t ranks);

}  // namespace fastsft
