#include "tokenizer/vocabulary_tokenizer.h"

#include "core/error.h"
#include "core/utf8.h"
#include "tokenizer/files/unsupported_tokenizer.h"
#include "tokenizer/unicode/unicode.h"

namespace fastsft {
namespace {

// The ids that a tokenizer adds before and after every text.
struct AddedAround {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
};

constexpr size_t kMaxAddedText = 512;  // search time grows with the longest text

void check_added(const std::map<int32_t, AddedToken>& added) {
  bool strips_right = false;
  bool begins_with_space = false;
  for (const auto& [id, token] : added) {
    require(find_invalid_utf8(token.text) == std::string_view::npos, "added token ", id,
            " is not UTF-8");
    if (token.text.size() > kMaxAddedText) {
      throw UnsupportedTokenizer(concat("an added token of ", token.text.size(), " bytes"));
    }
    strips_right |= token.strips_right;
    begins_with_space |= is_space(decode_char(token.text, 0).code);
  }
  if (strips_right && begins_with_space) {
    throw UnsupportedTokenizer(
        "an added token that strips white space beside one that begins with it");
  }
}

void add_template(const Json& section, AddedAround& around) {
  int num_texts = 0;
  for (const Json& item : section.at("single")) {
    if (item.contains("Sequence")) {
      ++num_texts;
      continue;
    }
    auto& side = num_texts == 0 ? around.before : around.after;
    const auto token = item.at("SpecialToken").at("id").get<std::string>();
    for (const Json& id : section.at("special_tokens").at(token).at("ids")) {
      require(id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < INT32_MAX,
              "tokenizer.json: post_processor: expected the ids of \"", token, "\"");
      side.push_back(id.get<int32_t>());
    }
  }
  if (num_texts != 1)
    throw UnsupportedTokenizer("a post-processor template without exactly one text");
}

// Adds the ids that the post_processor in a tokenizer.json puts around a single text. Supports
// TemplateProcessing, ByteLevel and sequences of these; throws UnsupportedTokenizer for others.
void add_processor(const Json& section, AddedAround& around) {
  if (section.is_null()) return;
  const auto type = section.at("type").get<std::string>();
  if (type == "ByteLevel") return;
  if (type == "Sequence") {
    for (const Json& part : section.at("processors")) add_processor(part, around);
  } else if (type == "TemplateProcessing") {
    if (!around.before.empty() || !around.after.empty()) {
      throw UnsupportedTokenizer("a post-processor with two templates");
    }
    add_template(section, around);
  } else {
    throw UnsupportedTokenizer("the post-processor \"" + type + "\"");
  }
}

}  // namespace

VocabularyTokenizer::VocabularyTokenizer(const TokenizerJson& json,
                                         const JsonTokenizerSettings& settings)
    : vocabulary_(json, settings.added), legacy_(settings.legacy) {
  check_added(vocabulary_.added());
  const auto id_of = [&](const std::string& text) {
    const int32_t id = text.empty() ? -1 : find_token(text);
    require(text.empty() || id >= 0, "the special token \"", text, "\" is not in the vocabulary");
    return id;
  };
  named_ = {id_of(settings.bos), id_of(settings.eos), id_of(settings.unk), id_of(settings.pad)};
  set_added_around(json.post_processor, settings);
}

// Sets the tokens added around a text. If the settings name no BOS or EOS but the post-processor
// adds a token in front or at the end, that token is used as BOS or EOS.
void VocabularyTokenizer::set_added_around(const Json& post_processor,
                                           const JsonTokenizerSettings& settings) {
  if (settings.adds_bos || settings.adds_eos) {
    adds_bos_ = settings.adds_bos.value_or(false);
    adds_eos_ = settings.adds_eos.value_or(false);
    require(!adds_bos_ || named_.bos >= 0, "add_bos_token is set without a bos_token");
    require(!adds_eos_ || named_.eos >= 0, "add_eos_token is set without an eos_token");
    return;
  }
  AddedAround around;
  try {
    add_processor(post_processor, around);
  } catch (const Json::exception& error) {
    throw_invalid("tokenizer.json: post_processor: a part is missing or has an unexpected type: ",
                  error.what());
  }
  adds_bos_ = !around.before.empty();
  adds_eos_ = !around.after.empty();
  if (adds_bos_ && named_.bos < 0) named_.bos = around.before[0];
  if (adds_eos_ && named_.eos < 0) named_.eos = around.after[0];
  const bool fits = around.before.size() <= 1 && around.after.size() <= 1 &&
                    (!adds_bos_ || around.before[0] == named_.bos) &&
                    (!adds_eos_ || around.after[0] == named_.eos);
  if (!fits)
    throw UnsupportedTokenizer("a post-processor that adds more than bos_token and eos_token");
}

std::string VocabularyTokenizer::token_text(int32_t id) const {
  const std::string* text = vocabulary_.find_text(id);
  require(text != nullptr, "token id ", id, " is not in the vocabulary of ", vocab_size(),
          " tokens");
  return *text;
}

bool VocabularyTokenizer::is_control(int32_t id) const {
  const auto added = vocabulary_.added().find(id);
  return added != vocabulary_.added().end() && added->second.special;
}

std::vector<const AddedToken*> VocabularyTokenizer::list_unnormalized() const {
  std::vector<const AddedToken*> tokens;
  for (const auto& [id, token] : vocabulary_.added()) {
    if (!token.normalized) tokens.push_back(&token);
  }
  return tokens;
}

}  // namespace fastsft
