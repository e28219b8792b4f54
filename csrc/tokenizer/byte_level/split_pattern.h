#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace fastsft {

// The patterns by which byte-level tokenizers split a text before merging. A pattern is recognised
// if its regular expression has exactly the known text.
enum class SplitPattern {
  kGpt2,    // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  kCl100k,  // cl100k_base as in Llama 3: at most three digits per piece
  kQwen2,   // like kCl100k, but one digit per piece: Qwen since Qwen2
};

// Returns the most digits in a piece, SIZE_MAX if there is no limit.
size_t max_digits(SplitPattern pattern);

std::optional<SplitPattern> find_split_pattern(std::string_view regex);

// Returns the end of the piece that begins at `at`. `text` is valid UTF-8, and `at` is below its
// size.
size_t find_split_end(SplitPattern pattern, std::string_view text, size_t at);

// Returns the size in bytes of the contraction ('s, 'll, ...) whose apostrophe is at `at`, or 0 if
// there is none.
size_t find_contraction(SplitPattern pattern, std::string_view text, size_t at);

}  // namespace fastsft
