#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "chat/example.h"
#include "chat/label_options.h"
#include "chat/template.h"
#include "chat/transcript.h"
#include "tokenizer/tokenizer.h"

namespace fastsft {

// Ids and labels of a transcript exactly as FastChat's preprocess() makes them
// (docs/spec/fastchat_labels.md, section 2, rules 6 to 13) from one tokenisation. `max_length` ids
// at most, BOS included. Ids equal to `pad_id` are not counted as real. When FastChat labels
// padding, the example ends with as many pad ids.
Labels label_fastchat(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                      const Transcript& transcript, int64_t max_length, int32_t pad_id,
                      LabelBuffers& buffers);

// Encodes a transcript, without BOS, and marks each token as learned or not: its last byte is in a
// learned span (a special token's last byte that is not white space which it took along; a mark
// without bytes counts as the byte after it). Data is encoded as plain text. False when data spells
// a special token and the tokenizer cannot keep it apart.
//
// `merged`: the text of the first token that has the end of a prompt and the beginning of its
// reply, "" without any. With kSplit such a text is encoded up to the reply, and from it on.
bool encode_transcript(const Tokenizer& tokenizer, const Transcript& transcript,
                       BoundaryTokens boundary, std::vector<Token>& tokens,
                       std::vector<bool>& learned, std::string& merged);

// Ids and labels of a transcript by its learned spans (docs/spec/fastchat_labels.md, section 4.2),
// `max_length` ids at most, BOS included. Nothing when encode_transcript says false.
std::optional<Labels> label_spans(const Tokenizer& tokenizer, const Transcript& transcript,
                                  int64_t max_length, BoundaryTokens boundary,
                                  LabelBuffers& buffers);

}  // namespace fastsft
