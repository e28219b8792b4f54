#include <algorithm>

#include "chat/transcript_labels.h"
#include "tokenizer/special_tokens.h"

namespace fastsft {
namespace {

// The byte that decides whether a token is learned.
uint32_t deciding_byte(const Tokenizer& tokenizer, std::string_view text, const Token& token) {
  if (token.begin == token.end) return token.begin;
  if (!tokenizer.is_special(token.id)) return token.end - 1;
  const auto own = strip_right(text.substr(token.begin, token.end - token.begin));
  return own.empty() ? token.end - 1 : token.begin + static_cast<uint32_t>(own.size()) - 1;
}

}  // namespace

bool encode_transcript(const Tokenizer& tokenizer, const Transcript& transcript,
                       std::vector<Token>& tokens, std::vector<bool>& learned) {
  tokens.clear();
  learned.clear();
  if (!tokenizer.encode_segments(transcript.text, transcript.data(), tokens)) return false;
  const std::vector<ByteSpan> spans = transcript.learned();
  learned.reserve(tokens.size());
  for (size_t i = 0, at = 0; i < tokens.size(); ++i) {
    const uint32_t byte = deciding_byte(tokenizer, transcript.text, tokens[i]);
    while (at < spans.size() && spans[at].end <= byte) ++at;
    learned.push_back(at < spans.size() && spans[at].begin <= byte);
  }
  return true;
}

std::optional<Labels> label_spans(const Tokenizer& tokenizer, const Transcript& transcript,
                                  int64_t max_length, LabelBuffers& buffers) {
  auto& [tokens, learned, part] = buffers;
  if (!encode_transcript(tokenizer, transcript, tokens, learned)) return std::nullopt;
  Labels labels;
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
