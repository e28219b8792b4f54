#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/bpe/text_index.h"
#include "tokenizer/files/tokenizer_json.h"
#include "tokenizer/tokenizer.h"

namespace fastsft {

// An added token that a tokenizer's other files name. Its id is not read: it is that of its text,
// or else the next one. Where the text is an added token already, the flags may count or not.
struct GivenToken {
  AddedToken token;
  bool replaces_file = false;   // one of tokenizer.json
  bool replaces_other = false;  // one that was given before
};

// The tokens of a tokenizer.json by id and text, added ones included, with the ids that
// `tokenizers` gives to them.
class JsonVocabulary {
 public:
  // `given` come to the added tokens of the file, in their order. Throws UnsupportedTokenizer when
  // the file's ids are not those that `tokenizers` gives.
  JsonVocabulary(const TokenizerJson& json, const std::vector<GivenToken>& given);

  const std::map<int32_t, AddedToken>& added() const { return added_; }
  int32_t size() const { return size_; }
  // nullptr when there is none.
  const std::string* find_text(int32_t id) const;
  // -1 when there is none.
  int32_t find_id(std::string_view text) const { return ids_.find(text); }

 private:
  int32_t next_id() const;
  void add(const AddedToken& token);

  std::vector<std::string> pieces_;  // by id; empty where an added token has the id
  std::vector<bool> has_piece_;
  int32_t num_pieces_ = 0;
  TextIndex ids_;
  std::map<int32_t, AddedToken> added_;
  int32_t size_ = 0;
};

// Settings next to tokenizer.json: in tokenizer_config.json, or in a tokenizer object.
struct JsonTokenizerSettings {
  std::vector<GivenToken> added;
  // Texts of the named tokens; "" for none. They must be tokens.
  std::string bos, eos, unk, pad;
  std::optional<bool> add_prefix_space;  // instead of a ByteLevel pre-tokenizer's
  // What goes around a text, instead of what the post-processor says: bos and eos, or nothing.
  std::optional<bool> adds_bos, adds_eos;
  bool legacy = true;
};

// The native tokenizer of a tokenizer.json; throws UnsupportedTokenizer when there is none.
std::shared_ptr<Tokenizer> make_json_tokenizer(const TokenizerJson& json,
                                               const JsonTokenizerSettings& settings);

}  // namespace fastsft
