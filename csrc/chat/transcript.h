#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "chat/fastchat_check.h"
#include "chat/template.h"

namespace fastsft {

// Bytes [begin, end) of a transcript.
struct ByteSpan {
  uint32_t begin = 0;
  uint32_t end = 0;
};

// A conversation as the text that the model reads, and what of it is learned: each reply with its
// lead and its stop token. Messages without text have no span.
struct Transcript {
  std::string text;
  std::vector<ByteSpan> learned;
};

// Renders turns (rules 4 and 5 of fastchat_labels.md). `transcript` is overwritten; its memory is
// reused.
void render_template(const ChatTemplate& chat_template, const Turns& turns, Transcript& transcript);

}  // namespace fastsft
