#include "tokenizer/tokenizer.h"

#include <algorithm>

namespace fastsft {
namespace {

bool overlaps(const Token& token, std::span<const ByteSpan> data) {
  const auto behind = std::partition_point(
      data.begin(), data.end(), [&](const ByteSpan& span) { return span.end <= token.begin; });
  return behind != data.end() && behind->begin < token.end;
}

void shift(std::vector<Token>& tokens, size_t first, uint32_t offset) {
  for (size_t i = first; i < tokens.size(); ++i) {
    tokens[i].begin += offset;
    tokens[i].end += offset;
  }
}

// Encodes the text between special tokens piece by piece. A special token is only found if a single
// span in `control` contains all its bytes.
void encode_pieces(const Tokenizer& tokenizer, std::string_view text,
                   std::span<const ByteSpan> control, std::vector<Token>& tokens) {
  size_t at = 0;
  const auto encode_up_to = [&](size_t end) {
    const size_t first = tokens.size();
    if (at < end) tokenizer.encode(text.substr(at, end - at), SpecialText::kPlain, tokens);
    shift(tokens, first, static_cast<uint32_t>(at));
  };
  std::vector<Token> found;
  for (const ByteSpan& span : control) {
    found.clear();
    tokenizer.encode(text.substr(span.begin, span.end - span.begin), SpecialText::kFind, found);
    shift(found, 0, span.begin);
    for (const Token& token : found) {
      if (!tokenizer.is_special(token.id) || token.begin < at) continue;
      encode_up_to(token.begin);
      tokens.push_back(token);
      at = token.end;
    }
  }
  encode_up_to(text.size());
}

}  // namespace

std::vector<ByteSpan> complement(std::span<const ByteSpan> spans, size_t size) {
  std::vector<ByteSpan> result;
  uint32_t at = 0;
  for (const ByteSpan& span : spans) {
    if (at < span.begin) result.push_back({at, span.begin});
    at = span.end;
  }
  if (at < size) result.push_back({at, static_cast<uint32_t>(size)});
  return result;
}

bool Tokenizer::encode_segments(std::string_view text, std::span<const ByteSpan> data,
                                std::vector<Token>& tokens) const {
  const size_t first = tokens.size();
  encode(text, SpecialText::kFind, tokens);
  const bool is_apart = std::none_of(tokens.begin() + first, tokens.end(), [&](const Token& t) {
    return is_control(t.id) && overlaps(t, data);
  });
  if (is_apart) return true;
  tokens.resize(first);
  // If the prefix space depends on the position, a piece that is encoded alone would get other
  // tokens.
  if (!prefixes_every_part()) return false;
  encode_pieces(*this, text, complement(data, text.size()), tokens);
  return true;
}

}  // namespace fastsft
