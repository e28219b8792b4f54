#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fastsft {

// One id and the bytes [begin, end) of the text that it encodes. The ranges of a text's tokens
// follow each other and cover it; a mark that the tokenizer put in front of the text has an empty
// range.
struct Token {
  int32_t id = 0;
  uint32_t begin = 0;
  uint32_t end = 0;
};

// Bytes of a text that a Token can point into.
inline constexpr size_t kMaxText = UINT32_MAX;

// Bytes [begin, end) of a text.
struct ByteSpan {
  uint32_t begin = 0;
  uint32_t end = 0;
};

// Ids of the named tokens; -1 where the tokenizer has none.
struct NamedIds {
  int32_t bos = -1;
  int32_t eos = -1;
  int32_t unk = -1;
  int32_t pad = -1;
};

// What happens to the text of a special token ("</s>") inside a text.
enum class SpecialText { kFind, kPlain };

// Text to tokens and back. All methods may be called from several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the tokens of `text` (valid UTF-8, below 4 GiB), without BOS and EOS.
  virtual void encode(std::string_view text, SpecialText specials,
                      std::vector<Token>& tokens) const = 0;
  // The same ids without the byte ranges, in less time where the tokenizer has a way for it.
  virtual void encode_ids(std::string_view text, SpecialText specials,
                          std::vector<int32_t>& ids) const {
    std::vector<Token> tokens;
    encode(text, specials, tokens);
    ids.reserve(ids.size() + tokens.size());
    for (const Token& token : tokens) ids.push_back(token.id);
  }
  // As encode(text, kFind), but inside and across the borders of `data` (in order, apart from each
  // other) control tokens are not found: there "</s>" is ordinary text. False, and nothing is
  // appended, when a text with a control token in its data cannot be encoded so.
  virtual bool encode_segments(std::string_view text, std::span<const ByteSpan> data,
                               std::vector<Token>& tokens) const;
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const = 0;

  virtual int32_t vocab_size() const = 0;  // added tokens included
  // A token as it is written in the vocabulary, and back; std::invalid_argument for an id that is
  // none, -1 for a text that is none.
  virtual std::string token_text(int32_t id) const = 0;
  virtual int32_t find_token(std::string_view text) const = 0;
  virtual NamedIds named() const = 0;
  virtual bool adds_bos() const = 0;
  virtual bool adds_eos() const = 0;
  virtual bool is_special(int32_t id) const = 0;  // found by its text, apart from the vocabulary
  // Whether kPlain spells the text of a special token out. Of a tokenizer.json's added tokens those
  // marked "special"; others, such as Qwen3's <think>, are found in any text, as Hugging Face does.
  virtual bool is_control(int32_t id) const { return is_special(id); }
  // The tokenizer's `legacy`: FastChat's label arithmetic asks for it.
  virtual bool legacy() const = 0;
  // Text between special tokens has the tokens that it has alone, wherever it is.
  virtual bool prefixes_every_part() const = 0;

  // True promises, for every text: tokens that end at or before a space that follows a non-space
  // are the same whatever comes after it; a space alone is one token; and special tokens take no
  // white space next to them away. Then results for a part of a text follow from results for the
  // whole.
  virtual bool cuts_before_spaces() const = 0;
};

// What `spans` (in order, apart from each other) leave of [0, size), without empty spans.
std::vector<ByteSpan> complement(std::span<const ByteSpan> spans, size_t size);

}  // namespace fastsft
