#include "chat/explain.h"

#include <algorithm>

#include "chat/transcript_labels.h"

namespace fastsft {

Explanation explain(const Labeller& labeller, const Conversation& conversation) {
  Explanation result;
  LabelBuffers buffers;
  result.record = labeller.label_one(conversation, result.transcript, buffers);
  const Example& example = result.record.labels.example;
  if (!result.record.has_row()) return result;
  const Transcript& transcript = result.transcript;
  const Tokenizer& tokenizer = labeller.tokenizer();
  const bool is_fastchat = labeller.options().mask_policy == MaskPolicy::kFastchat;
  std::vector<Token> tokens;  // tokens of the whole text, as the mask policy encodes it
  if (is_fastchat) {
    tokenizer.encode(transcript.text, SpecialText::kFind, tokens);
  } else {
    std::vector<bool> learned;
    std::string merged;
    encode_transcript(tokenizer, transcript, labeller.options().boundary_tokens, tokens, learned,
                      merged);
  }
  const size_t front = is_fastchat ? tokenizer.adds_bos() : transcript.bos_in_front;
  for (size_t i = 0; i < example.ids.size(); ++i) {
    ExplainedToken token{example.ids[i]};
    if (i >= front && i - front < tokens.size() && tokens[i - front].id == token.id) {
      token.begin = tokens[i - front].begin;
      token.end = tokens[i - front].end;
    }
    result.tokens.push_back(token);
  }
  for (const TokenSpan& span : example.learned) {
    for (int32_t i = span.begin; i < span.end; ++i) result.tokens[i].is_learned = true;
  }
  result.num_cut = front + tokens.size() - std::min(front + tokens.size(), example.ids.size());
  return result;
}

}  // namespace fastsft
