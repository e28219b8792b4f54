#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "chat/dialogue.h"
#include "chat/template.h"
#include "tokenizer/tokenizer.h"

namespace fastsft {

// A part of a transcript.
struct Segment {
  ByteSpan bytes;
  bool is_data = false;     // from the record; the rest is control text of the template
  bool is_learned = false;  // replies with their lead and stop token
};

// The text of a conversation that the model reads. Segments follow each other and cover it.
struct Transcript {
  std::string text;
  std::vector<Segment> segments;
  bool bos_in_front = false;  // one BOS id, which is not part of the text
  bool data_is_known = true;  // false: which text is data could not be found out
  int64_t rewritten = -1;     // a learned message whose text is not what the record has
  std::string more_data{};    // then: what the text has from the record next to its messages
  std::string failure;        // why there is no text; empty when there is
  bool needs_rows = false;    // it fails as one text: each reply may have a row of its own

  void clear();
  // Skips empty pieces.
  void append(std::string_view piece, bool is_data, bool is_learned);
  std::vector<ByteSpan> data() const;
  std::vector<ByteSpan> learned() const;
};

// Renders a text that is no conversation, followed by EOS; all of it is learned. BOS is in front if
// the tokenizer adds it.
void render_text(const Tokenizer& tokenizer, std::string_view text, Transcript& transcript);

// Buffers that are reused from record to record. They are not thread_local, because glibc ends the
// process if there is no memory at a thread's first use of such data.
struct LabelBuffers {
  std::vector<Token> tokens;
  std::vector<bool> learned;
  std::vector<Token> part;  // tokens of a turn that is encoded alone
};

// Renders dialogues with a named template for one tokenizer, whose BOS it places.
class TemplateRenderer {
 public:
  TemplateRenderer(const ChatTemplate& chat_template, const Tokenizer& tokenizer);

  // Overwrites `transcript`; its memory is reused. Messages without text, which only FastChat's
  // policy lets through, are written as FastChat writes them.
  void render(const Dialogue& dialogue, Transcript& transcript) const;

 private:
  void append_system(std::string_view system, Transcript& transcript) const;
  void append_user(std::string_view text, std::string_view system, bool is_first,
                   Transcript& transcript) const;
  void append_reply(const DialogueMessage& message, Transcript& transcript) const;
  std::string_view settle(std::string_view text) const;

  const ChatTemplate& template_;
  bool bos_in_front_ = false;
  std::string bos_text_;  // in front of later user messages
};

}  // namespace fastsft
