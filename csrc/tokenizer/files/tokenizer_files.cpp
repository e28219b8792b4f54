#include "tokenizer/files/tokenizer_files.h"

#include <array>
#include <charconv>
#include <filesystem>
#include <map>

#include "core/error.h"
#include "core/json.h"
#include "core/regular_file.h"
#include "tokenizer/bpe/text_index.h"

namespace fastsft {
namespace {

constexpr size_t kMaxModelFile = size_t{256} << 20;
constexpr const char* kAdditional = "additional_special_tokens";
// The order in which Hugging Face assigns ids to special tokens that are not in the vocabulary.
constexpr std::array kNames = {"bos_token", "eos_token", "unk_token", "sep_token",
                               "pad_token", "cls_token", "mask_token"};

// The added tokens during loading, with their ids by text if known.
class AddedTokens {
 public:
  AddedTokens(const SentencePieceModel& model, std::string where)
      : where_(std::move(where)), num_pieces_(model.pieces.size()), pieces_(num_pieces_) {
    for (size_t id = 0; id < num_pieces_; ++id) {
      pieces_.add(model.pieces[id].text, static_cast<int32_t>(id));
    }
  }

  // `is_settled`: a named token with the same text does not override the flags.
  void set(int32_t id, const Json& token, bool is_settled) {
    AddedToken added = parse(token);
    added.id = id;
    if (is_settled) settled_.insert(added.text);
    ids_[added.text] = id;
    tokens_.insert_or_assign(id, std::move(added));
  }

  // Returns a named token's id. A token without id gets its id in the vocabulary, or the next free
  // id after it. A known token keeps its flags unless `replaces` is true.
  int32_t add(const Json& token, bool replaces = false) {
    AddedToken added = parse(token);
    if (const auto known = ids_.find(added.text); known != ids_.end()) {
      added.id = known->second;
      if (replaces) tokens_.insert_or_assign(added.id, added);
      return added.id;
    }
    const int32_t piece = pieces_.find(added.text);
    added.id = piece != TextIndex::kMissing ? piece : next_id();
    ids_[added.text] = added.id;
    return tokens_.emplace(added.id, added).first->second.id;
  }

  // Like `add`, but takes the token's flags unless a token with the same text is settled or was
  // named before.
  int32_t add_named(const Json& token) {
    const bool is_first = settled_.insert(parse(token).text).second;
    return add(token, token.is_object() && is_first);
  }

  // Returns -1 if the token is not known yet.
  int32_t find(const Json& token) const {
    const auto known = ids_.find(parse(token).text);
    return known == ids_.end() ? -1 : known->second;
  }

  const std::map<int32_t, AddedToken>& tokens() const { return tokens_; }
  size_t num_pieces() const { return num_pieces_; }

 private:
  AddedToken parse(const Json& token) const {
    AddedToken added;
    if (token.is_string()) {
      added.text = token.get<std::string>();
    } else {
      require(token.is_object() && token.contains("content") && token["content"].is_string(),
              where_, ": expected a special token (a text or an object with \"content\"), got ",
              token.dump());
      added.text = token["content"].get<std::string>();
      added.strips_left = token.value("lstrip", false);
      added.strips_right = token.value("rstrip", false);
      require(!token.value("single_word", false), where_, ": special token \"", added.text,
              "\" has single_word, which is not supported");
    }
    require(!added.text.empty(), where_, ": a special token is empty");
    return added;
  }

  int32_t next_id() const {
    auto next = static_cast<int32_t>(num_pieces_);
    for (const auto& [text, id] : ids_) next += pieces_.find(text) == TextIndex::kMissing;
    return next;
  }

  std::string where_;
  size_t num_pieces_;
  TextIndex pieces_;
  std::map<std::string, int32_t, std::less<>> ids_;
  std::map<int32_t, AddedToken> tokens_;
  std::set<std::string, std::less<>> settled_;
};

Json read_optional(const std::filesystem::path& path, const char* only = nullptr) {
  if (!std::filesystem::exists(path)) return Json::object();
  Json json = read_json_file(path.string(), only);
  require(json.is_object(), path.string(), ": expected an object, got ", json.type_name(),
          "; copy or download it again");
  return json;
}

// Reads the settings from the older files if the config has no added_tokens_decoder.
void merge_older_files(const std::filesystem::path& directory, Json& config, AddedTokens& added) {
  const Json map = read_optional(directory / "special_tokens_map.json");
  for (const auto& [key, value] : map.items()) {
    if (key != kAdditional) {
      config[key] = value;
      continue;
    }
    for (const Json& token : value) config[kAdditional].push_back(token);
  }
  const Json older = read_optional(directory / "added_tokens.json");
  for (const auto& [text, id] : older.items()) {
    require(id.is_number(), (directory / "added_tokens.json").string(), ": ", text,
            ": expected a token id, got ", id.dump(), "; write its number, or copy the file again");
    added.set(id.get<int32_t>(), Json(text), false);
  }
  const Json fast = read_optional(directory / "tokenizer.json", "added_tokens");
  if (!fast.contains("added_tokens")) return;
  for (const Json& token : fast["added_tokens"])
    added.set(token.at("id").get<int32_t>(), token, true);
}

int32_t parse_id(std::string_view text, const std::string& where) {
  int32_t id = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  require(error == std::errc() && end == text.data() + text.size(), where,
          ": added_tokens_decoder: expected a token id, got \"", text, "\"");
  return id;
}

bool get_bool(const Json& config, const char* key, bool fallback) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return fallback;
  require(found->is_boolean(), "tokenizer_config.json: ", key, ": expected true or false, got ",
          found->dump(), "; correct it, or copy the tokenizer's files again");
  return found->get<bool>();
}

LlamaSettings make_settings(const Json& config, AddedTokens& added) {
  require(!get_bool(config, "split_special_tokens", false),
          "tokenizer_config.json: split_special_tokens would spell the template's own tokens out; "
          "set it to false");
  LlamaSettings settings;
  settings.legacy = get_bool(config, "legacy", true);
  settings.add_prefix_space = get_bool(config, "add_prefix_space", true);
  settings.add_bos = get_bool(config, "add_bos_token", true);
  settings.add_eos = get_bool(config, "add_eos_token", false);
  const Json defaults = {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}};
  std::map<std::string, int32_t> named;
  for (const char* name : kNames) {
    const Json& source = config.contains(name) ? config : defaults;
    if (!source.contains(name) || source[name].is_null()) continue;
    named[name] = added.add_named(source[name]);
    settings.special_ids.insert(named[name]);
  }
  const auto id_of = [&](const char* name) { return named.contains(name) ? named[name] : -1; };
  settings.named = {id_of("bos_token"), id_of("eos_token"), id_of("unk_token"), id_of("pad_token")};
  for (const auto& [id, token] : added.tokens()) {
    if (!settings.special_ids.contains(id)) settings.spaced_ids.insert(id);
  }
  const std::set<int32_t> named_ids = settings.special_ids;
  for (const Json& token : config.value(kAdditional, Json::array())) {
    // Hugging Face adds a token that is given as an object once more, unless a named token has the
    // same text.
    const int32_t known = added.find(token);
    const int32_t id = added.add(token, token.is_object() && !named_ids.contains(known));
    settings.special_ids.insert(id);
    settings.spaced_ids.erase(id);
    if (static_cast<size_t>(id) >= added.num_pieces()) settings.spaced_ids.insert(id);
  }
  for (const auto& [id, token] : added.tokens()) settings.added.push_back(token);
  return settings;
}

}  // namespace

TokenizerFiles read_tokenizer_files(const std::string& directory, const SentencePieceModel& model) {
  const std::filesystem::path root(directory);
  const std::string where = (root / "tokenizer_config.json").string();
  Json config = read_optional(where);
  AddedTokens added(model, where);
  try {
    if (config.contains("added_tokens_decoder")) {
      for (const auto& [id, token] : config["added_tokens_decoder"].items()) {
        added.set(parse_id(id, where), token, true);
      }
    } else {
      merge_older_files(root, config, added);
    }
    TokenizerFiles files;
    files.settings = make_settings(config, added);
    files.padding_side = config.value("padding_side", std::string("right"));
    if (const auto found = config.find("model_max_length");
        found != config.end() && found->is_number() && found->get<double>() < 1e9) {
      files.model_max_length = static_cast<int64_t>(found->get<double>());
    }
    return files;
  } catch (const Json::exception& error) {
    throw_invalid(where, ": a setting has an unexpected type: ", error.what());
  }
}

SentencePieceModel read_sentencepiece_model(const std::string& path) {
  require(std::filesystem::exists(path), "cannot read ", path,
          ": the directory holds neither a tokenizer.model nor a tokenizer.json; one of them must "
          "be there: copy the tokenizer's files from the model that it was made of");
  return parse_sentencepiece_model(read_regular_file(path, kMaxModelFile), path);
}

}  // namespace fastsft
