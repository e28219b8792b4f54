#include "tokenizer/sentencepiece/metaspace_rules.h"

#include <algorithm>
#include <set>
#include <string>

#include "core/error.h"
#include "core/utf8.h"
#include "tokenizer/bpe/pair_table.h"
#include "tokenizer/files/unsupported_tokenizer.h"

namespace fastsft {
namespace {

std::string required_type(const Json& section) {
  return section.is_null() ? "none" : section.at("type").get<std::string>();
}

// Returns true if a normalizer or decoder replaces the text `from` by `to`.
bool is_replacement(const Json& part, const char* from, const char* to) {
  return required_type(part) == "Replace" && part.at("pattern") == Json{{"String", from}} &&
         part.at("content") == to;
}

constexpr const char* kMarkText = "\xE2\x96\x81";

void parse_normalizer(const Json& section, MetaspaceRules& rules) {
  if (section.is_null()) return;
  const Json parts =
      required_type(section) == "Sequence" ? section.at("normalizers") : Json{section};
  size_t at = 0;
  if (at < parts.size() && required_type(parts[at]) == "Prepend") {
    if (parts[at].at("prepend") != kMarkText)
      throw UnsupportedTokenizer("a normalizer that prepends a text");
    rules.prefix = PrefixRule::kAlways;
    ++at;
  }
  if (at + 1 != parts.size() || !is_replacement(parts[at], " ", kMarkText)) {
    throw UnsupportedTokenizer("the normalizer " + in_quotes(required_type(section)) +
                               " of a BPE model");
  }
  rules.has_normalizer = true;
}

void parse_pre_tokenizer(const Json& section, MetaspaceRules& rules) {
  if (required_type(section) != "Metaspace" || rules.has_normalizer) {
    throw UnsupportedTokenizer("the pre-tokenizer " + in_quotes(required_type(section)) +
                               " of a BPE model");
  }
  for (const auto& [key, value] : section.items()) {
    static const std::set<std::string> kKnown = {"type", "replacement", "prepend_scheme", "split"};
    if (!kKnown.contains(key))
      throw UnsupportedTokenizer("a Metaspace pre-tokenizer with " + in_quotes(key));
  }
  if (section.at("replacement") != kMarkText)
    throw UnsupportedTokenizer("a Metaspace replacement of its own");
  const auto scheme = section.at("prepend_scheme").get<std::string>();
  if (scheme == "always") {
    rules.prefix = PrefixRule::kUnlessSpace;
  } else if (scheme == "first") {
    rules.prefix = PrefixRule::kFirstUnlessSpace;
  } else if (scheme != "never") {
    throw UnsupportedTokenizer("the Metaspace prepend_scheme " + in_quotes(scheme));
  }
  if (section.value("split", true)) rules.words = WordRule::kEverySpace;
}

// Parses the decoders that Llama's converter writes: Replace, ByteFallback, Fuse and perhaps Strip.
void parse_decoder(const Json& section, MetaspaceRules& rules) {
  if (required_type(section) != "Sequence")
    throw UnsupportedTokenizer("the decoder " + in_quotes(required_type(section)));
  const Json& parts = section.at("decoders");
  const bool is_known =
      parts.size() >= 3 && parts.size() <= 4 && is_replacement(parts[0], kMarkText, " ") &&
      required_type(parts[1]) == "ByteFallback" && required_type(parts[2]) == "Fuse";
  if (!is_known) throw UnsupportedTokenizer("a decoder of its own");
  rules.replaces_marks = true;
  if (parts.size() == 3) return;
  const bool strips = required_type(parts[3]) == "Strip" && parts[3].at("content") == " " &&
                      parts[3].at("stop") == 0;
  if (!strips)
    throw UnsupportedTokenizer("a decoder that ends with " + in_quotes(required_type(parts[3])));
  rules.stripped_spaces = parts[3].at("start").get<int64_t>();
}

}  // namespace

MetaspaceRules parse_metaspace_rules(const TokenizerJson& json) {
  MetaspaceRules rules;
  try {
    check_bpe_settings(
        json, {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"});
    parse_normalizer(json.normalizer, rules);
    if (!json.pre_tokenizer.is_null()) parse_pre_tokenizer(json.pre_tokenizer, rules);
    if (!rules.has_normalizer && json.pre_tokenizer.is_null()) {
      throw UnsupportedTokenizer("a BPE model whose spaces stay spaces");
    }
    parse_decoder(json.decoder, rules);
  } catch (const Json::exception& error) {
    throw_invalid("tokenizer.json: a part is missing or has an unexpected type: ", error.what());
  }
  return rules;
}

namespace {

// Leaves room in PairTable for characters that are not pieces.
constexpr int32_t kMaxIds = 1 << 20;

bool is_character(const std::string& text) {
  return !text.empty() && text.size() == utf8_char_size(static_cast<unsigned char>(text[0]));
}

// Sets the pieces by which characters outside the vocabulary are written byte by byte. Every byte
// must have a piece.
void index_bytes(const TokenizerJson& json, SentencePieceModel& model) {
  for (const VocabularyPiece& piece : json.pieces) {
    const auto byte = parse_byte_piece(piece.text);
    if (!byte) continue;
    if (model.bytes.empty()) model.bytes.assign(256, -1);
    model.bytes[*byte] = piece.id;
    model.pieces[piece.id].type = PieceType::kByte;
  }
  if (std::count(model.bytes.begin(), model.bytes.end(), -1) > 0 || model.bytes.empty()) {
    throw UnsupportedTokenizer("a BPE model with byte_fallback and not all bytes");
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
  if (model.unk_id < 0 && model.bytes.empty())
    throw UnsupportedTokenizer("a BPE model without unk_token");
  if (model.unk_id >= 0) model.pieces[model.unk_id].type = PieceType::kUnknown;
  model.fuses_unknown = json.model.value("fuse_unk", false);
}

}  // namespace

SentencePieceModel make_metaspace_model(const TokenizerJson& json) {
  SentencePieceModel model;
  int32_t size = 0;
  for (const VocabularyPiece& piece : json.pieces) size = std::max(size, piece.id + 1);
  if (size > kMaxIds) throw UnsupportedTokenizer(concat("token ids up to ", size));
  model.pieces.resize(size);
  bool has_mark = false;
  for (const VocabularyPiece& piece : json.pieces) {
    model.pieces[piece.id].text = piece.text;
    has_mark |= piece.text == kSpaceMark;
  }
  if (!has_mark) throw UnsupportedTokenizer("a vocabulary without U+2581");
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
    throw UnsupportedTokenizer(concat(json.merges.size(), " merges"));
  }
  MergeRules rules;
  rules.num_pieces = static_cast<int32_t>(model.pieces.size());
  for (const VocabularyPiece& piece : json.pieces) {
    const bool is_plain = model.pieces[piece.id].type == PieceType::kNormal;
    if (!is_character(piece.text)) continue;
    if (!is_plain) throw UnsupportedTokenizer("an unk_token of one character");
    rules.characters.emplace_back(utf8_code_point(piece.text, 0), piece.id);
  }
  const auto is_plain = [&](int32_t id) { return model.pieces[id].type == PieceType::kNormal; };
  // If a pair occurs twice, the last merge counts. The table keeps the first merge that it gets, so
  // add the merges in reverse order.
  for (size_t i = json.merges.size(); i-- > 0;) {
    const auto& [left, right, merged] = json.merges[i];
    if (!is_plain(left) || !is_plain(right) || !is_plain(merged)) {
      throw UnsupportedTokenizer("a merge of a byte or of the unk_token");
    }
    rules.rules.push_back({left, right, static_cast<int32_t>(i), merged});
    rules.merged.push_back(model.pieces[merged].text);
  }
  return rules;
}

}  // namespace fastsft
