#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "chat/dialogue.h"
#include "chat/label_options.h"
#include "chat/template.h"
#include "tokenizer/tokenizer.h"

namespace fastsft {

// A contiguous part of a transcript.
struct Segment {
  ByteSpan bytes;
  bool is_data = false;     // text from the record; otherwise the template's control text
  bool is_learned = false;  // part of a reply, its learned lead or its stop token
};

// A conversation's text as the model reads it. The segments are contiguous and cover the text.
struct Transcript {
  std::string text;
  std::vector<Segment> segments;
  std::vector<ByteSpan> left_out;  // thoughts in learned segments that are not learned
  bool bos_in_front = false;       // a BOS id comes first and is not part of the text
  bool data_is_known = true;       // false if it is unknown which text is data
  int64_t rewritten = -1;  // index of a learned message whose text differs from the record's; or -1
  // For `rewritten` >= 0: record data in the text that is not from its messages.
  std::string more_data{};
  std::string failure;      // why rendering failed; empty on success
  bool needs_rows = false;  // rendering as one text failed, but each reply may have its own row

  void clear();
  // Appends a piece. Skips an empty piece.
  void append(std::string_view piece, bool is_data, bool is_learned);
  // Puts the thoughts at the beginning of each reply that are not learned into `left_out`.
  void leave_out_thoughts(LearnThoughts learned);
  std::vector<ByteSpan> data() const;
  std::vector<ByteSpan> learned() const;
};

// Renders a plain text that is not a conversation, followed by EOS. The whole text is learned. BOS
// is in front if the tokenizer adds BOS.
void render_text(const Tokenizer& tokenizer, std::string_view text, Transcript& transcript);

// Buffers that are reused for many records. They are not thread_local, because glibc ends the
// process if it cannot allocate thread-local data at its first use.
struct LabelBuffers {
  std::vector<Token> tokens;
  std::vector<bool> learned;
  std::vector<Token> part;  // tokens of a turn that is encoded alone
};

// Renders dialogues with a named template for a tokenizer, and decides about BOS.
class TemplateRenderer {
 public:
  TemplateRenderer(const ChatTemplate& chat_template, const Tokenizer& tokenizer);

  // Overwrites `transcript` and reuses its memory. Messages without text, which only FastChat's
  // policy allows, are written as FastChat writes them.
  void render(const Dialogue& dialogue, Transcript& transcript) const;

 private:
  void append_system(std::string_view system, Transcript& transcript) const;
  void append_user(std::string_view text, std::string_view system, bool is_first,
                   Transcript& transcript) const;
  void append_reply(const DialogueMessage& message, Transcript& transcript) const;
  std::string_view settle(std::string_view text) const;

  const ChatTemplate& template_;
  bool bos_in_front_ = false;
  std::string bos_text_;  // text before later user messages
};

}  // namespace fastsft
