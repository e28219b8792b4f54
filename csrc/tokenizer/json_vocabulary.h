#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/text_index.h"
#include "tokenizer/tokenizer_json.h"

namespace fastsft {

// The tokens of a tokenizer.json by id and text, added ones included, with the ids that
// `tokenizers` gives to them.
class JsonVocabulary {
 public:
  // `added` come to those of the file: their ids are not read, and a text that is known gets the
  // new settings. `special_texts` become added tokens where they are none yet. Throws NotNative
  // when the file's ids are not those that `tokenizers` gives.
  JsonVocabulary(const TokenizerJson& json, const std::vector<AddedToken>& added,
                 const std::vector<std::string>& special_texts);

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
