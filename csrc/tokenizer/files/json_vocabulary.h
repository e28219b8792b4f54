#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/bpe/text_index.h"
#include "tokenizer/files/tokenizer_json.h"

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
  // `given` come to the added tokens of the file, in their order. Throws NotNative when the file's
  // ids are not those that `tokenizers` gives.
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

}  // namespace fastsft
