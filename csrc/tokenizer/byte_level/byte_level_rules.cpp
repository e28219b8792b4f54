#include "core/error.h"
#include "tokenizer/byte_level/byte_level_tokenizer.h"
#include "tokenizer/files/unsupported_tokenizer.h"

namespace fastsft {
namespace {

std::string type_or_none(const Json& section) {
  if (section.is_null()) return "none";
  return section.value("type", std::string("without a type"));
}

bool parse_normalizer(const Json& section) {
  const std::string type = type_or_none(section);
  if (type == "none") return false;
  if (type == "NFC") return true;
  if (type != "Sequence") throw UnsupportedTokenizer("the normalizer " + in_quotes(type));
  bool normalizes = false;
  for (const Json& part : section.at("normalizers")) normalizes |= parse_normalizer(part);
  return normalizes;
}

SplitPattern parse_split(const Json& section) {
  const auto behavior = section.at("behavior").get<std::string>();
  const bool invert = section.value("invert", false);
  // The patterns match every character, so there is no text between matches.
  if (!(behavior == "Isolated" && !invert) && !(behavior == "Removed" && invert)) {
    throw UnsupportedTokenizer("a split of behavior " + in_quotes(behavior));
  }
  const Json& pattern = section.at("pattern");
  if (!pattern.contains("Regex")) throw UnsupportedTokenizer("a split at a fixed text");
  const auto regex = pattern.at("Regex").get<std::string>();
  const auto known = find_split_pattern(regex);
  if (!known) throw UnsupportedTokenizer("the split pattern " + in_quotes(regex));
  return *known;
}

void parse_pre_tokenizer(const Json& section, const JsonTokenizerSettings& settings,
                         ByteLevelRules& rules) {
  if (type_or_none(section) == "ByteLevel") {
    if (!section.value("use_regex", true))
      throw UnsupportedTokenizer("a ByteLevel pre-tokenizer without split");
    const bool adds_prefix_space = section.value("add_prefix_space", true);
    rules.adds_prefix_space = settings.add_prefix_space.value_or(adds_prefix_space);
    return;
  }
  if (type_or_none(section) != "Sequence") {
    throw UnsupportedTokenizer("the pre-tokenizer " + in_quotes(type_or_none(section)));
  }
  const Json& parts = section.at("pretokenizers");
  const bool is_known = parts.size() == 2 && type_or_none(parts[0]) == "Split" &&
                        type_or_none(parts[1]) == "ByteLevel" &&
                        !parts[1].value("use_regex", true) &&
                        !parts[1].value("add_prefix_space", true);
  if (!is_known) {
    std::string types;
    for (const Json& part : parts) types += (types.empty() ? "" : ", ") + type_or_none(part);
    throw UnsupportedTokenizer("the pre-tokenizers " + in_quotes(types));
  }
  rules.pattern = parse_split(parts[0]);
}

}  // namespace

ByteLevelRules parse_byte_level_rules(const TokenizerJson& json,
                                      const JsonTokenizerSettings& settings) {
  ByteLevelRules rules;
  try {
    check_bpe_settings(
        json, {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"});
    rules.ignores_merges = json.model.value("ignore_merges", false);
    rules.normalizes_nfc = parse_normalizer(json.normalizer);
    parse_pre_tokenizer(json.pre_tokenizer, settings, rules);
    if (type_or_none(json.decoder) != "ByteLevel") {
      throw UnsupportedTokenizer("the decoder " + in_quotes(type_or_none(json.decoder)));
    }
  } catch (const Json::exception& error) {
    throw_invalid("tokenizer.json: a part is missing or has an unexpected type: ", error.what());
  }
  return rules;
}

}  // namespace fastsft
