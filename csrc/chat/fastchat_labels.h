#pragma once

#include <cstdint>

#include "chat/example.h"
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

}  // namespace fastsft
