#pragma once

#include <cstdint>

namespace fastsft::cuda {

// How the logits of a batch are cut: chunks of `rows` tokens (the last may have fewer), each row
// `stride` elements apart so that every row begins at a 16-byte address in either dtype.
struct LogitsPlan {
  int64_t rows;
  int64_t stride;
};

// Chunks hold at most about 512 MiB of float32 logits, but never fewer than 256 rows, and are of
// nearly equal size: enough rows for the products to run at full rate and for the head's gradient
// to be touched seldom.
LogitsPlan plan_logits(int64_t tokens, int64_t vocab);

// The largest chunk of up to `tokens` tokens: fewer of them may make larger chunks.
LogitsPlan largest_logits(int64_t tokens, int64_t vocab);

}  // namespace fastsft::cuda
