#pragma once

#include <cstdint>
#include <vector>

#include "chat/example.h"
#include "chat/template.h"
#include "chat/transcript.h"
#include "tokenizer/tokenizer.h"

namespace fastsft {

// The numbers of FastChat's warning "tokenization mismatch: {counted} vs. {real}. #turn = {turns}."
struct Mismatch {
  int64_t counted = 0;
  int64_t real = 0;
  int64_t turns = 0;
};

struct FastchatLabels {
  Example example;
  bool dropped = false;  // every label taken away; `mismatch` says why
  Mismatch mismatch;
  bool truncated = false;  // ids were cut off on the right
};

// Ids and labels of a transcript exactly as FastChat's preprocess() makes them (fastchat_labels.md,
// rules 6 to 13) from one tokenisation. `max_length` ids at most, BOS included. Ids equal to
// `pad_id` are not counted as real (rule 8). When FastChat labels padding, the example ends with as
// many pad ids.
FastchatLabels label_transcript(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                                const Transcript& transcript, int64_t max_length, int32_t pad_id);

}  // namespace fastsft
