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

// An added token from a file other than tokenizer.json. The file's id is ignored: the token gets
// its text's id, or the next free id. If an added token with the same text exists, the two
// flags say whose settings count.
struct GivenToken {
  AddedToken token;
  bool replaces_file = false;   // overrides the settings in tokenizer.json
  bool replaces_other = false;  // overrides a GivenToken before it
};

// All tokens in a tokenizer.json by id and by text, added tokens included, with the same ids as in
// `tokenizers`.
class JsonVocabulary {
 public:
  // `given`: tokens to add after the file's own added tokens, in order. Throws UnsupportedTokenizer
  // if `tokenizers` would give other ids than the file.
  JsonVocabulary(const TokenizerJson& json, const std::vector<GivenToken>& given);

  const std::map<int32_t, AddedToken>& added() const { return added_; }
  int32_t size() const { return size_; }
  // Returns null if there is no such id.
  const std::string* find_text(int32_t id) const;
  // Returns -1 if there is no such text.
  int32_t find_id(std::string_view text) const { return ids_.find(text); }

 private:
  int32_t next_id() const;
  void add(const AddedToken& token);

  std::vector<std::string> pieces_;  // by id; empty if an added token has the id
  std::vector<bool> has_piece_;
  int32_t num_pieces_ = 0;
  TextIndex ids_;
  std::map<int32_t, AddedToken> added_;
  int32_t size_ = 0;
};

// Settings from outside tokenizer.json: from tokenizer_config.json, or from a tokenizer object.
struct JsonTokenizerSettings {
  std::vector<GivenToken> added;
  // Texts of the named tokens, which must be in the vocabulary; "" for none.
  std::string bos, eos, unk, pad;
  std::optional<bool> add_prefix_space;  // overrides a ByteLevel pre-tokenizer's setting
  // Whether BOS and EOS are added to a text. If set, the post-processor is ignored.
  std::optional<bool> adds_bos, adds_eos;
  bool legacy = true;
};

// Makes the native tokenizer for a tokenizer.json. Throws UnsupportedTokenizer if fastsft has none
// for the file.
std::shared_ptr<Tokenizer> make_json_tokenizer(const TokenizerJson& json,
                                               const JsonTokenizerSettings& settings);

}  // namespace fastsft
