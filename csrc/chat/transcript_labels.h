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

// Returns a transcript's ids and labels exactly as FastChat's preprocess() makes them
// (docs/spec/fastchat_labels.md, section 2, rules 6 to 13), with a single tokenisation. There are
// at most `max_length` ids, BOS included. Ids equal to `pad_id` count as padding. If FastChat
// labels padding, the example ends with as many pad ids.
Labels label_fastchat(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                      const Transcript& transcript, int64_t max_length, int32_t pad_id,
                      LabelBuffers& buffers);

// Encodes a transcript without BOS and marks each token as learned or not. A token is learned if
// its last byte is in a learned span and not in thoughts that are left out. For a special token
// that includes white space after it, the last byte that is not white space decides; for a token
// without bytes, the byte after it. Data is encoded as plain text. Returns false if data spells a
// special token and the tokenizer cannot encode it as plain text.
//
// `merged`: receives the text of the first token that contains a prompt's end and the beginning of
// its reply, or "". With kSplit the text is cut where such replies begin, and its parts are encoded
// separately.
bool encode_transcript(const Tokenizer& tokenizer, const Transcript& transcript,
                       BoundaryTokens boundary, std::vector<Token>& tokens,
                       std::vector<bool>& learned, std::string& merged);

// Returns a transcript's ids and labels from its learned spans (docs/spec/fastchat_labels.md,
// section 4.2). There are at most `max_length` ids, BOS included. Returns nothing if
// encode_transcript returns false.
std::optional<Labels> label_spans(const Tokenizer& tokenizer, const Transcript& transcript,
                                  int64_t max_length, BoundaryTokens boundary,
                                  LabelBuffers& buffers);

}  // namespace fastsft
