#include "tokenizer/files/tokenizer_json.h"

#include <cmath>

#include "core/error.h"
#include "core/regular_file.h"
#include "tokenizer/bpe/text_index.h"
#include "tokenizer/files/tokenizer_json_events.h"

namespace fastsft {
namespace {

constexpr size_t kMaxFile = size_t{256} << 20;

const Json& get_section(const Json& root, const char* key) {
  static const Json kNull;
  const auto found = root.find(key);
  return found == root.end() ? kNull : *found;
}

bool get_flag(const Json& token, const char* key, const std::string& where) {
  const auto found = token.find(key);
  if (found == token.end()) return false;
  require(found->is_boolean(), where, ": expected true or false for \"", key, "\", got ",
          found->type_name());
  return found->get<bool>();
}

AddedToken parse_added(const Json& token, const std::string& where) {
  require(token.is_object(), where, ": expected an object, got ", token.type_name());
  const Json& id = get_section(token, "id");
  const Json& content = get_section(token, "content");
  require(id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < INT32_MAX, where,
          ": expected a token id as \"id\", got ", id.is_number() ? id.dump() : id.type_name());
  require(content.is_string() && !content.get_ref<const std::string&>().empty(), where,
          ": expected a text that is not empty as \"content\", got ", content.type_name());
  AddedToken added;
  added.id = id.get<int32_t>();
  added.text = content.get<std::string>();
  added.strips_left = get_flag(token, "lstrip", where);
  added.strips_right = get_flag(token, "rstrip", where);
  added.single_word = get_flag(token, "single_word", where);
  added.normalized = get_flag(token, "normalized", where);
  added.special = get_flag(token, "special", where);
  return added;
}

std::vector<AddedToken> parse_added_tokens(const Json& section, const std::string& where) {
  std::vector<AddedToken> tokens;
  if (section.is_null()) return tokens;
  require(section.is_array(), where, ": added_tokens: expected a list, got ", section.type_name());
  TextIndex ids;
  for (const Json& token : section) {
    tokens.push_back(parse_added(token, concat(where, ": added_tokens: token ", tokens.size())));
    const AddedToken& added = tokens.back();
    require(ids.add(added.text, added.id), where, ": added_tokens: duplicate token ", added.id);
  }
  return tokens;
}

// Returns a table from the pieces' texts to their ids.
TextIndex index_pieces(const TokenizerJson& json, const std::string& where) {
  const size_t limit = json.pieces.size() + json.added_tokens.size();
  TextIndex ids(json.pieces.size());
  std::vector<bool> is_taken(limit);
  for (const VocabularyPiece& piece : json.pieces) {
    const auto id = static_cast<size_t>(piece.id);
    require(id < limit, where, ": model.vocab: id ", id, " is not below the number of tokens, ",
            limit);
    require(!is_taken[id], where, ": model.vocab: two pieces have the id ", id);
    require(ids.add(piece.text, piece.id), where, ": model.vocab: the piece of id ", id,
            " is a duplicate");
    require(std::isfinite(piece.score), where, ": model.vocab: the score of piece ", id,
            " is not finite");
    is_taken[id] = true;
  }
  for (const AddedToken& token : json.added_tokens) {
    require(static_cast<size_t>(token.id) < limit, where, ": added_tokens: id ", token.id,
            " is not below the number of tokens, ", limit);
  }
  return ids;
}

void add_merges(const TokenizerJsonEvents& events, const TextIndex& ids, const std::string& where,
                TokenizerJson& json) {
  const Json& prefix = get_section(json.model, "continuing_subword_prefix");
  require(prefix.is_null() || prefix.is_string(), where,
          ": model.continuing_subword_prefix: expected a text, got ", prefix.type_name());
  const size_t prefix_size = prefix.is_null() ? 0 : prefix.get_ref<const std::string&>().size();
  std::string joined;
  json.merges.reserve(events.num_merges());
  for (size_t i = 0; i < events.num_merges(); ++i) {
    const auto [left, right] = events.merge_at(i);
    const auto id_of = [&](std::string_view text, const char* part) {
      const int32_t id = ids.find(text);
      require(id != TextIndex::kMissing, where, ": model.merges: ", part, " of merge ", i,
              " is not in the vocabulary");
      return id;
    };
    const int32_t left_id = id_of(left, "the left part");
    const int32_t right_id = id_of(right, "the right part");
    joined.assign(left).append(right.substr(std::min(prefix_size, right.size())));
    json.merges.push_back({left_id, right_id, id_of(joined, "the result")});
  }
}

}  // namespace

TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where) {
  require(text.size() <= kMaxFile, where, ": ", text.size(), " bytes, at most ", kMaxFile,
          " are possible");
  // The parser would treat a NUL byte as the text's end.
  require(text.find('\0') == text.npos, where, ": NUL byte at ", text.find('\0'));
  TokenizerJsonEvents events(where);
  Json::sax_parse(text.begin(), text.end(), &events);
  require(events.rest.is_object(), where, ": expected an object, got ", events.rest.type_name());
  const auto model = events.rest.find("model");
  require(model != events.rest.end() && model->is_object(), where,
          ": expected an object \"model\"; copy or download it again");
  TokenizerJson json;
  json.model = std::move(*model);
  require(events.has_vocabulary, where, ": expected the vocabulary as \"model.vocab\"");
  json.pieces = std::move(events.pieces);
  // Older files have no type. Only BPE models have merges.
  const Json& type = get_section(json.model, "type");
  require(type.is_null() || type.is_string(), where, ": model.type: expected a text, got ",
          type.type_name());
  json.model_type = type.is_null() ? (events.has_merges ? "BPE" : "") : type.get<std::string>();
  json.added_tokens = parse_added_tokens(get_section(events.rest, "added_tokens"), where);
  add_merges(events, index_pieces(json, where), where, json);
  json.normalizer = get_section(events.rest, "normalizer");
  json.pre_tokenizer = get_section(events.rest, "pre_tokenizer");
  json.post_processor = get_section(events.rest, "post_processor");
  json.decoder = get_section(events.rest, "decoder");
  return json;
}

TokenizerJson read_tokenizer_json(const std::string& path) {
  return parse_tokenizer_json(read_regular_file(path, kMaxFile), path);
}

}  // namespace fastsft
