#include <algorithm>
#include <string>

#include "core/error.h"
#include "core/utf8.h"
#include "tokenizer/bpe/pair_table.h"
#include "tokenizer/files/not_native.h"
#include "tokenizer/sentencepiece/metaspace_rules.h"

namespace fastsft {
namespace {

// With the characters that are no pieces PairTable must still have room.
constexpr int32_t kMaxIds = 1 << 20;

bool is_character(const std::string& text) {
  return !text.empty() && text.size() == utf8_char_size(static_cast<unsigned char>(text[0]));
}

// A character that is not in the vocabulary is written byte by byte where every byte has a piece.
void index_bytes(const TokenizerJson& json, SentencePieceModel& model) {
  for (const VocabularyPiece& piece : json.pieces) {
    const auto byte = parse_byte_piece(piece.text);
    if (!byte) continue;
    if (model.bytes.empty()) model.bytes.assign(256, -1);
    model.bytes[*byte] = piece.id;
    model.pieces[piece.id].type = PieceType::kByte;
  }
  if (std::count(model.bytes.begin(), model.bytes.end(), -1) > 0 || model.bytes.empty()) {
    throw NotNative("a BPE model with byte_fallback and not all bytes");
  }
}

void set_unknown(const TokenizerJson& json, SentencePieceModel& model) {
  const auto unk = json.model.find("unk_token");
  model.unk_id = -1;
  if (unk != json.model.end() && unk->is_string()) {
    const auto text = unk->get<std::string>();
    const auto found = std::ranges::find(json.pieces, text, &VocabularyPiece::text);
    if (found != json.pieces.end()) model.unk_id = found->id;
  }
  if (model.unk_id < 0 && model.bytes.empty()) throw NotNative("a BPE model without unk_token");
  if (model.unk_id >= 0) model.pieces[model.unk_id].type = PieceType::kUnknown;
  model.fuses_unknown = json.model.value("fuse_unk", false);
}

}  // namespace

SentencePieceModel make_metaspace_model(const TokenizerJson& json) {
  SentencePieceModel model;
  int32_t size = 0;
  for (const VocabularyPiece& piece : json.pieces) size = std::max(size, piece.id + 1);
  if (size > kMaxIds) throw NotNative(concat("token ids up to ", size));
  model.pieces.resize(size);
  bool has_mark = false;
  for (const VocabularyPiece& piece : json.pieces) {
    model.pieces[piece.id].text = piece.text;
    has_mark |= piece.text == kSpaceMark;
  }
  if (!has_mark) throw NotNative("a vocabulary without U+2581");
  try {
    if (json.model.value("byte_fallback", false)) index_bytes(json, model);
    set_unknown(json, model);
  } catch (const Json::exception& error) {
    throw_invalid("tokenizer.json: model: a setting has an unexpected type: ", error.what());
  }
  return model;
}

MergeRules make_metaspace_merges(const TokenizerJson& json, const SentencePieceModel& model) {
  if (json.merges.size() >= PairTable::kNone) {
    throw NotNative(concat(json.merges.size(), " merges"));
  }
  MergeRules rules;
  rules.num_pieces = static_cast<int32_t>(model.pieces.size());
  for (const VocabularyPiece& piece : json.pieces) {
    const bool is_plain = model.pieces[piece.id].type == PieceType::kNormal;
    if (!is_character(piece.text)) continue;
    if (!is_plain) throw NotNative("an unk_token of one character");
    rules.characters.emplace_back(utf8_code_point(piece.text, 0), piece.id);
  }
  const auto is_plain = [&](int32_t id) { return model.pieces[id].type == PieceType::kNormal; };
  // Of a pair that comes twice the last merge counts, and the table keeps the first that it gets.
  for (size_t i = json.merges.size(); i-- > 0;) {
    const auto& [left, right, merged] = json.merges[i];
    if (!is_plain(left) || !is_plain(right) || !is_plain(merged)) {
      throw NotNative("a merge of a byte or of the unk_token");
    }
    rules.rules.push_back({left, right, static_cast<int32_t>(i), merged});
    rules.merged.push_back(model.pieces[merged].text);
  }
  return rules;
}

}  // namespace fastsft
