// Fuzzes conversations, rendered with every chat template. The segments must cover the text, and no
// token inside data may be special.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "chat/dialogue_builder.h"
#include "chat/record_parser.h"
#include "chat/template.h"
#include "chat/transcript.h"
#include "chat/transcript_labels.h"
#include "core/utf8.h"

namespace {

using fastsft::Token;

void check(bool ok) {
  if (!ok) std::abort();
}

// A tokenizer with one token per byte, and special tokens that fuzzed texts often contain.
class ByteTokenizer : public fastsft::Tokenizer {
 public:
  void encode(std::string_view text, fastsft::SpecialText specials,
              std::vector<Token>& tokens) const override {
    for (size_t at = 0; at < text.size();) {
      const bool found = specials == fastsft::SpecialText::kFind && text.substr(at, 4) == "</s>";
      const size_t size = found ? 4 : 1;
      tokens.push_back(
          {found ? 2 : 256, static_cast<uint32_t>(at), static_cast<uint32_t>(at + size)});
      at += size;
    }
  }
  std::string decode(std::span<const int32_t>, bool) const override { return ""; }
  int32_t vocab_size() const override { return 257; }
  std::string token_text(int32_t id) const override { return id == 1 ? "<s>" : "</s>"; }
  int32_t find_token(std::string_view text) const override { return text == "</s>" ? 2 : -1; }
  fastsft::NamedIds named() const override { return {1, 2, -1, -1}; }
  bool adds_bos() const override { return true; }
  bool adds_eos() const override { return false; }
  bool is_special(int32_t id) const override { return id == 2; }
  bool legacy() const override { return false; }
  bool prefixes_every_part() const override { return true; }
  bool cuts_before_spaces() const override { return false; }
};

void check_transcript(const fastsft::Transcript& transcript) {
  uint32_t at = 0;
  for (const fastsft::Segment& segment : transcript.segments) {
    check(segment.bytes.begin == at && segment.bytes.end > at);
    at = segment.bytes.end;
  }
  check(at == transcript.text.size());
  check(fastsft::find_invalid_utf8(transcript.text) == std::string_view::npos);
}

void check_tokens(const fastsft::Tokenizer& tokenizer, const fastsft::Transcript& transcript) {
  std::vector<Token> tokens;
  std::vector<bool> learned;
  std::string merged;
  check(fastsft::encode_transcript(tokenizer, transcript, fastsft::BoundaryTokens::kMerge, tokens,
                                   learned, merged));
  check(tokens.size() == learned.size());
  const auto data = transcript.data();
  uint32_t at = 0;
  size_t next = 0;
  for (const Token& token : tokens) {
    check(token.begin == at);
    at = token.end;
    while (next < data.size() && data[next].end <= token.begin) ++next;
    const bool in_data = next < data.size() && data[next].begin < token.end;
    check(!in_data || !tokenizer.is_special(token.id));
  }
  check(at == transcript.text.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const ByteTokenizer tokenizer;
  fastsft::LabelOptions options;
  options.mask_policy = fastsft::MaskPolicy::kSpans;
  options.on_bad_sample =
      size % 2 == 0 ? fastsft::OnBadSample::kSkip : fastsft::OnBadSample::kRepair;
  fastsft::Conversation conversation;
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    fastsft::JsonScanner scanner(text);
    fastsft::RecordParser().parse(scanner, conversation);
  } catch (const std::invalid_argument&) {
    return 0;
  }
  for (const std::string& name : fastsft::ChatTemplates::instance().names()) {
    const fastsft::ChatTemplate& chat_template = fastsft::find_chat_template(name);
    const fastsft::DialogueBuilder builder(options, {false, chat_template.strips});
    fastsft::Dialogue dialogue;
    std::vector<fastsft::RecordIssue> findings;
    builder.build(conversation, dialogue, findings);
    check(!dialogue.messages.empty() || !findings.empty());
    if (dialogue.messages.empty()) continue;
    fastsft::Transcript transcript;
    fastsft::TemplateRenderer(chat_template, tokenizer).render(dialogue, transcript);
    check_transcript(transcript);
    check_tokens(tokenizer, transcript);
  }
  return 0;
}
