#include <algorithm>

#include "chat/transcript_labels.h"
#include "tokenizer/unicode/unicode.h"

namespace fastsft {
namespace {

// Returns the byte position that decides whether a token is learned.
uint32_t deciding_byte(const Tokenizer& tokenizer, std::string_view text, const Token& token) {
  if (token.begin == token.end) return token.begin;
  if (!tokenizer.is_special(token.id)) return token.end - 1;
  const auto own = strip_right(text.substr(token.begin, token.end - token.begin));
  return own.empty() ? token.end - 1 : token.begin + static_cast<uint32_t>(own.size()) - 1;
}

// Returns true if a span contains `byte`. `at`: the number of the first span that may; it advances.
bool reaches(const std::vector<ByteSpan>& spans, size_t& at, uint32_t byte) {
  while (at < spans.size() && spans[at].end <= byte) ++at;
  return at < spans.size() && spans[at].begin <= byte;
}

// Returns the positions inside tokens at which learned spans begin. A special token that includes
// white space does not count, because it is the same token in the prompt alone.
std::vector<uint32_t> find_seams(const Tokenizer& tokenizer, const std::vector<ByteSpan>& spans,
                                 const std::vector<Token>& tokens, const std::string& text,
                                 std::string& merged) {
  std::vector<uint32_t> seams;
  auto token = tokens.begin();
  for (const ByteSpan& span : spans) {
    while (token != tokens.end() && token->end <= span.begin) ++token;
    if (token == tokens.end()) break;
    if (token->begin >= span.begin || tokenizer.is_special(token->id)) continue;
    if (seams.empty()) merged = text.substr(token->begin, token->end - token->begin);
    seams.push_back(span.begin);
  }
  return seams;
}

std::vector<ByteSpan> clipped(const std::vector<ByteSpan>& spans, ByteSpan part, size_t front) {
  std::vector<ByteSpan> inside;
  const auto move = [&](uint32_t at) { return static_cast<uint32_t>(at - part.begin + front); };
  for (const ByteSpan& span : spans) {
    const uint32_t begin = std::max(span.begin, part.begin), end = std::min(span.end, part.end);
    if (begin < end) inside.push_back({move(begin), move(end)});
  }
  return inside;
}

// Appends the tokens for the bytes `part` of the text. Returns false if a token reaches from
// `guard` into the part.
// `guard`: a text that stands for everything before the part, so that the tokenizer does not put a
// space in front of it; "" for the beginning of the text.
bool encode_part(const Tokenizer& tokenizer, const std::string& text,
                 const std::vector<ByteSpan>& data, ByteSpan part, std::string_view guard,
                 std::vector<Token>& tokens) {
  std::string alone(guard);
  alone.append(text, part.begin, part.end - part.begin);
  std::vector<Token> found;
  if (!tokenizer.encode_segments(alone, clipped(data, part, guard.size()), found)) return false;
  for (Token token : found) {
    if (!guard.empty() && token.end <= guard.size()) continue;
    if (token.begin < guard.size()) return false;
    token.begin += part.begin - static_cast<uint32_t>(guard.size());
    token.end += part.begin - static_cast<uint32_t>(guard.size());
    tokens.push_back(token);
  }
  return true;
}

bool puts_space_in_front(const Tokenizer& tokenizer) {
  std::vector<Token> tokens;
  tokenizer.encode("0", SpecialText::kFind, tokens);
  return tokens.empty() || tokenizer.token_text(tokens.front().id) != "0";
}

// Cuts the text at the seams and replaces `tokens` by the tokens from the parts. Leaves `tokens`
// unchanged if that is not possible.
void encode_apart(const Tokenizer& tokenizer, const std::string& text,
                  const std::vector<ByteSpan>& data, std::vector<uint32_t> seams,
                  std::vector<Token>& tokens) {
  const std::string_view guard = puts_space_in_front(tokenizer) ? "\n" : "";
  std::vector<Token> apart;
  seams.push_back(static_cast<uint32_t>(text.size()));
  uint32_t begin = 0;
  for (const uint32_t end : seams) {
    const bool is_first = begin == 0;
    if (!encode_part(tokenizer, text, data, {begin, end}, is_first ? "" : guard, apart)) return;
    begin = end;
  }
  tokens = std::move(apart);
}

}  // namespace

bool encode_transcript(const Tokenizer& tokenizer, const Transcript& transcript,
                       BoundaryTokens boundary, std::vector<Token>& tokens,
                       std::vector<bool>& learned, std::string& merged) {
  tokens.clear();
  learned.clear();
  const std::vector<ByteSpan> data = transcript.data(), spans = transcript.learned();
  if (!tokenizer.encode_segments(transcript.text, data, tokens)) return false;
  const std::vector<uint32_t> seams = find_seams(tokenizer, spans, tokens, transcript.text, merged);
  if (!seams.empty() && boundary == BoundaryTokens::kSplit) {
    encode_apart(tokenizer, transcript.text, data, seams, tokens);
  }
  learned.reserve(tokens.size());
  for (size_t i = 0, at = 0, out = 0; i < tokens.size(); ++i) {
    const uint32_t byte = deciding_byte(tokenizer, transcript.text, tokens[i]);
    learned.push_back(reaches(spans, at, byte) && !reaches(transcript.left_out, out, byte));
  }
  return true;
}

std::optional<Labels> label_spans(const Tokenizer& tokenizer, const Transcript& transcript,
                                  int64_t max_length, BoundaryTokens boundary,
                                  LabelBuffers& buffers) {
  auto& [tokens, learned, part] = buffers;
  Labels labels;
  if (!encode_transcript(tokenizer, transcript, boundary, tokens, learned, labels.merged)) {
    return std::nullopt;
  }
  auto& [ids, spans] = labels.example;
  const int64_t total = static_cast<int64_t>(tokens.size()) + transcript.bos_in_front;
  const int64_t size = std::min(total, max_length);
  labels.truncated = size < total;
  ids.reserve(size);
  if (transcript.bos_in_front && size > 0) ids.push_back(tokenizer.named().bos);
  for (size_t i = 0; static_cast<int64_t>(ids.size()) < size; ++i) {
    const auto position = static_cast<int32_t>(ids.size());
    ids.push_back(tokens[i].id);
    if (!learned[i]) continue;
    if (spans.empty() || spans.back().end != position) spans.push_back({position, position});
    ++spans.back().end;
  }
  return labels;
}

}  // namespace fastsft
