#include "tokenizer/sentencepiece/metaspace_rules.h"

#include <set>

#include "core/error.h"
#include "tokenizer/files/not_native.h"

namespace fastsft {
namespace {

std::string required_type(const Json& section) {
  return section.is_null() ? "none" : section.at("type").get<std::string>();
}

// Spaces become U+2581.
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
    if (parts[at].at("prepend") != kMarkText) throw NotNative("a normalizer that prepends a text");
    rules.prefix = PrefixRule::kAlways;
    ++at;
  }
  if (at + 1 != parts.size() || !is_replacement(parts[at], " ", kMarkText)) {
    throw NotNative("the normalizer " + in_quotes(required_type(section)) + " of a BPE model");
  }
  rules.has_normalizer = true;
}

void parse_pre_tokenizer(const Json& section, MetaspaceRules& rules) {
  if (required_type(section) != "Metaspace" || rules.has_normalizer) {
    throw NotNative("the pre-tokenizer " + in_quotes(required_type(section)) + " of a BPE model");
  }
  for (const auto& [key, value] : section.items()) {
    static const std::set<std::string> kKnown = {"type", "replacement", "prepend_scheme", "split"};
    if (!kKnown.contains(key)) throw NotNative("a Metaspace pre-tokenizer with " + in_quotes(key));
  }
  if (section.at("replacement") != kMarkText) throw NotNative("a Metaspace replacement of its own");
  const auto scheme = section.at("prepend_scheme").get<std::string>();
  if (scheme == "always") {
    rules.prefix = PrefixRule::kUnlessSpace;
  } else if (scheme == "first") {
    rules.prefix = PrefixRule::kFirstUnlessSpace;
  } else if (scheme != "never") {
    throw NotNative("the Metaspace prepend_scheme " + in_quotes(scheme));
  }
  if (section.value("split", true)) rules.words = WordRule::kEverySpace;
}

// Replace, ByteFallback, Fuse, Strip: what Llama's converter writes.
void parse_decoder(const Json& section, MetaspaceRules& rules) {
  if (required_type(section) != "Sequence")
    throw NotNative("the decoder " + in_quotes(required_type(section)));
  const Json& parts = section.at("decoders");
  const bool is_known =
      parts.size() >= 3 && parts.size() <= 4 && is_replacement(parts[0], kMarkText, " ") &&
      required_type(parts[1]) == "ByteFallback" && required_type(parts[2]) == "Fuse";
  if (!is_known) throw NotNative("a decoder of its own");
  rules.replaces_marks = true;
  if (parts.size() == 3) return;
  const bool strips = required_type(parts[3]) == "Strip" && parts[3].at("content") == " " &&
                      parts[3].at("stop") == 0;
  if (!strips) throw NotNative("a decoder that ends with " + in_quotes(required_type(parts[3])));
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
      throw NotNative("a BPE model whose spaces stay spaces");
    }
    parse_decoder(json.decoder, rules);
  } catch (const Json::exception& error) {
    throw_invalid("tokenizer.json: a part is missing or has an unexpected type: ", error.what());
  }
  return rules;
}

}  // namespace fastsft
