#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fastsft {

// A token id and the bytes [begin, end) of the text that the token encodes. A text's token ranges
// are contiguous and cover the text. A U+2581 that the tokenizer puts in front of the text has an
// empty range.
struct Token {
  int32_t id = 0;
  uint32_t begin = 0;
  uint32_t end = 0;
};

// The largest text size that the positions in a Token can address.
inline constexpr size_t kMaxText = UINT32_MAX;

// The bytes [begin, end) in a text.
struct ByteSpan {
  uint32_t begin = 0;
  uint32_t end = 0;
};

// The named tokens' ids; -1 if the tokenizer has no such token.
struct NamedIds {
  int32_t bos = -1;
  int32_t eos = -1;
  int32_t unk = -1;
  int32_t pad = -1;
};

// How a special token's text ("</s>") inside a text is treated: kFind makes it the special token,
// kPlain encodes it as ordinary text.
enum class SpecialText { kFind, kPlain };

// Converts text to tokens and back. Several threads may call all methods at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the tokens of `text` (valid UTF-8, less than 4 GiB), without BOS and EOS.
  virtual void encode(std::string_view text, SpecialText specials,
                      std::vector<Token>& tokens) const = 0;
  // Appends the same ids without byte ranges. Some tokenizers have a faster implementation.
  virtual void encode_ids(std::string_view text, SpecialText specials,
                          std::vector<int32_t>& ids) const {
    std::vector<Token> tokens;
    encode(text, specials, tokens);
    ids.reserve(ids.size() + tokens.size());
    for (const Token& token : tokens) ids.push_back(token.id);
  }
  // Encodes like encode(text, kFind), except that control tokens are not found inside `data` or
  // across its borders: "</s>" is ordinary text there. The spans are sorted and do not overlap.
  // Returns false and appends nothing if the tokenizer cannot do this for a text with a control
  // token in its data.
  virtual bool encode_segments(std::string_view text, std::span<const ByteSpan> data,
                               std::vector<Token>& tokens) const;
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const = 0;

  virtual int32_t vocab_size() const = 0;  // includes added tokens
  // Convert between an id and the token's text in the vocabulary. Unknown ids throw
  // std::invalid_argument; unknown texts give -1.
  virtual std::string token_text(int32_t id) const = 0;
  virtual int32_t find_token(std::string_view text) const = 0;
  virtual NamedIds named() const = 0;
  virtual bool adds_bos() const = 0;
  virtual bool adds_eos() const = 0;
  virtual bool is_special(int32_t id) const = 0;  // an added token, found by its text
  // True if kPlain encodes the token's text as ordinary text. In a tokenizer.json these are the
  // added tokens marked "special". Others, such as <think>, are found in any text, as in Hugging
  // Face's tokenizers.
  virtual bool is_control(int32_t id) const { return is_special(id); }
  // Returns the tokenizer's `legacy` flag, which FastChat's label arithmetic needs.
  virtual bool legacy() const = 0;
  // True if the text between two special tokens always has the same tokens as when it is encoded
  // alone.
  virtual bool prefixes_every_part() const = 0;

  // True if results for a part can be derived from the whole text's tokens. This guarantees for
  // every text: tokens that end at or before a space after a non-space do not depend on the text
  // after that space; a single space is one token; special tokens do not strip white space next to
  // them.
  virtual bool cuts_before_spaces() const = 0;
};

// Returns the parts of [0, size) that are not in `spans`, without empty parts. The spans are sorted
// and do not overlap.
std::vector<ByteSpan> complement(std::span<const ByteSpan> spans, size_t size);

}  // namespace fastsft
