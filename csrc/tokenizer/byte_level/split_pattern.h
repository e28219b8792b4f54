#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace fastsft {

// The rules by which byte-level tokenizers cut a text before their merges, known by the exact text
// of the regular expression.
enum class SplitPattern {
  kGpt2,    // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  kCl100k,  // cl100k_base as Llama 3 writes it: up to three digits together
  kQwen2,   // the same with single digits: Qwen2, Qwen2.5, Qwen3
};

// Digits that stay together; SIZE_MAX for all.
size_t max_digits(SplitPattern pattern);

std::optional<SplitPattern> find_split_pattern(std::string_view regex);

// The end of the piece that begins at `at` (below the size) of `text`, which is valid UTF-8.
size_t find_split_end(SplitPattern pattern, std::string_view text, size_t at);

// The bytes of the contraction ('s, 'll, ...) whose apostrophe is at `at`, 0 when there is none.
size_t find_contraction(SplitPattern pattern, std::string_view text, size_t at);

}  // namespace fastsft
