#include "tokenizer/files/json_vocabulary.h"

#include <algorithm>
#include <set>

#include "core/error.h"
#include "tokenizer/byte_level/byte_level_tokenizer.h"
#include "tokenizer/files/unsupported_tokenizer.h"
#include "tokenizer/sentencepiece/metaspace_tokenizer.h"
#include "tokenizer/sentencepiece/sentencepiece_model.h"

namespace fastsft {

JsonVocabulary::JsonVocabulary(const TokenizerJson& json, const std::vector<GivenToken>& given)
    : num_pieces_(static_cast<int32_t>(json.pieces.size())), ids_(json.pieces.size()) {
  pieces_.resize(json.pieces.size());
  has_piece_.resize(json.pieces.size());
  for (const VocabularyPiece& piece : json.pieces) {
    if (static_cast<size_t>(piece.id) >= pieces_.size()) {
      pieces_.resize(piece.id + 1);
      has_piece_.resize(piece.id + 1);
    }
    pieces_[piece.id] = piece.text;
    has_piece_[piece.id] = true;
    ids_.add(piece.text, piece.id);
  }
  for (const AddedToken& token : json.added_tokens) {
    add(token);
    const int32_t id = find_id(token.text);
    if (id != token.id) {
      throw UnsupportedTokenizer(
          concat("an added token with the id ", token.id, " that gets ", id));
    }
  }
  std::set<int32_t> in_file;
  for (const auto& [id, token] : added_) in_file.insert(id);
  for (const GivenToken& each : given) {
    const int32_t id = find_id(each.token.text);
    const bool replaces = in_file.contains(id) ? each.replaces_file : each.replaces_other;
    if (replaces || !added_.contains(id)) add(each.token);
  }
  size_ = static_cast<int32_t>(pieces_.size());
  if (!added_.empty()) size_ = std::max(size_, added_.rbegin()->first + 1);
}

int32_t JsonVocabulary::next_id() const {
  if (added_.empty() || added_.rbegin()->first < num_pieces_) return num_pieces_;
  return added_.rbegin()->first + 1;
}

void JsonVocabulary::add(const AddedToken& token) {
  require(!token.text.empty(), "an added token is empty");
  ids_.add(token.text, next_id());
  AddedToken added = token;
  added.id = ids_.find(token.text);
  added_.insert_or_assign(added.id, std::move(added));
}

const std::string* JsonVocabulary::find_text(int32_t id) const {
  if (const auto found = added_.find(id); found != added_.end()) return &found->second.text;
  const bool is_piece = id >= 0 && static_cast<size_t>(id) < pieces_.size() && has_piece_[id];
  return is_piece ? &pieces_[id] : nullptr;
}

namespace {

bool writes_marks(const Json& section) {
  return section.dump(-1, ' ', false, Json::error_handler_t::replace).find(kSpaceMark) !=
         std::string::npos;
}

}  // namespace

std::shared_ptr<Tokenizer> make_json_tokenizer(const TokenizerJson& json,
                                               const JsonTokenizerSettings& settings) {
  if (writes_marks(json.normalizer) || writes_marks(json.pre_tokenizer)) {
    return std::make_shared<MetaspaceTokenizer>(json, settings);
  }
  return std::make_shared<ByteLevelTokenizer>(json, settings);
}

}  // namespace fastsft
