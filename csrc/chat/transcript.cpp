#include "chat/transcript.h"

#include "tokenizer/unicode/unicode.h"

namespace fastsft {
namespace {

void append_span(std::vector<ByteSpan>& spans, ByteSpan span) {
  if (!spans.empty() && spans.back().end == span.begin) {
    spans.back().end = span.end;
  } else {
    spans.push_back(span);
  }
}

// Returns the thoughts at the beginning of the reply in `reply`, with the white space after them;
// an empty span if there are none. Their <think> may be the prompt's end.
ByteSpan find_thoughts(const std::string& whole, ByteSpan reply) {
  constexpr std::string_view kBegin = "<think>", kEnd = "</think>";
  const std::string_view text =
      std::string_view(whole).substr(reply.begin, reply.end - reply.begin);
  const std::string_view prompt = strip_right(std::string_view(whole).substr(0, reply.begin));
  const bool begins = strip_left(text).starts_with(kBegin);
  if (!begins && !prompt.ends_with(kBegin)) return {reply.begin, reply.begin};
  const size_t end = text.find(kEnd);
  if (end == text.npos) return reply;  // thoughts that never end
  const std::string_view after = text.substr(end + kEnd.size());
  return {reply.begin, reply.end - static_cast<uint32_t>(strip_left(after).size())};
}

bool is_blank(std::string_view thoughts) {
  for (const std::string_view tag : {"<think>", "</think>"}) {
    thoughts = strip_left(thoughts);
    if (thoughts.starts_with(tag)) thoughts.remove_prefix(tag.size());
  }
  return strip_left(thoughts).empty();
}

}  // namespace

void Transcript::leave_out_thoughts(LearnThoughts learned) {
  if (learned == LearnThoughts::kAll) return;
  for (const ByteSpan& reply : this->learned()) {
    const ByteSpan thoughts = find_thoughts(text, reply);
    const std::string_view part =
        std::string_view(text).substr(thoughts.begin, thoughts.end - thoughts.begin);
    if (part.empty()) continue;
    if (learned == LearnThoughts::kNone || is_blank(part)) left_out.push_back(thoughts);
  }
}

void Transcript::clear() {
  text.clear();
  segments.clear();
  left_out.clear();
  bos_in_front = false;
  data_is_known = true;
  rewritten = -1;
  more_data.clear();
  failure.clear();
  needs_rows = false;
}

void Transcript::append(std::string_view piece, bool is_data, bool is_learned) {
  if (piece.empty()) return;
  const auto begin = static_cast<uint32_t>(text.size());
  text += piece;
  segments.push_back({{begin, static_cast<uint32_t>(text.size())}, is_data, is_learned});
}

std::vector<ByteSpan> Transcript::data() const {
  std::vector<ByteSpan> spans;
  for (const Segment& segment : segments) {
    if (segment.is_data) append_span(spans, segment.bytes);
  }
  return spans;
}

std::vector<ByteSpan> Transcript::learned() const {
  std::vector<ByteSpan> spans;
  for (const Segment& segment : segments) {
    if (segment.is_learned) append_span(spans, segment.bytes);
  }
  return spans;
}

void render_text(const Tokenizer& tokenizer, std::string_view text, Transcript& transcript) {
  transcript.clear();
  transcript.bos_in_front = tokenizer.adds_bos();
  transcript.append(text, true, true);
  const int32_t eos = tokenizer.named().eos;
  if (eos >= 0) transcript.append(tokenizer.token_text(eos), false, true);
}

TemplateRenderer::TemplateRenderer(const ChatTemplate& chat_template, const Tokenizer& tokenizer)
    : template_(chat_template) {
  const int32_t bos = tokenizer.named().bos;
  bos_in_front_ = chat_template.bos == BosRule::kTokenizer ? tokenizer.adds_bos() : bos >= 0;
  if (chat_template.bos == BosRule::kEachTurn && bos >= 0) bos_text_ = tokenizer.token_text(bos);
}

std::string_view TemplateRenderer::settle(std::string_view text) const {
  return template_.strips ? strip_left(strip_right(text)) : text;
}

void TemplateRenderer::append_system(std::string_view system, Transcript& transcript) const {
  if (system.empty()) return;
  transcript.append(template_.before_system, false, false);
  transcript.append(system, true, false);
  transcript.append(template_.after_system, false, false);
}

void TemplateRenderer::append_user(std::string_view text, std::string_view system, bool is_first,
                                   Transcript& transcript) const {
  if (!is_first) transcript.append(bos_text_, false, false);
  if (text.empty()) return transcript.append(template_.empty_user, false, false);
  transcript.append(template_.before_user, false, false);
  if (is_first && template_.system_in_user) append_system(system, transcript);
  transcript.append(text, true, false);
  transcript.append(template_.after_user, false, false);
}

void TemplateRenderer::append_reply(const DialogueMessage& message, Transcript& transcript) const {
  const bool learned = message.is_learned;
  if (message.text.empty()) return transcript.append(template_.empty_assistant, false, false);
  const std::string_view before = template_.before_assistant;
  const size_t lead = before.size() - template_.learned_lead;
  transcript.append(before.substr(0, lead), false, false);
  transcript.append(before.substr(lead), false, learned);
  transcript.append(settle(message.text), true, learned);
  transcript.append(template_.before_stop, false, learned);
  transcript.append(template_.stop_token, false, learned);
  transcript.append(template_.after_stop, false, false);
}

void TemplateRenderer::render(const Dialogue& dialogue, Transcript& transcript) const {
  transcript.clear();
  transcript.bos_in_front = bos_in_front_;
  const std::string_view system = settle(dialogue.system.value_or(template_.system));
  if (!template_.system_in_user) append_system(system, transcript);
  bool is_first = true;
  for (const DialogueMessage& message : dialogue.messages) {
    if (message.role == Role::kUser) {
      append_user(settle(message.text), system, is_first, transcript);
      is_first = false;
    } else {
      append_reply(message, transcript);
    }
  }
}

}  // namespace fastsft
