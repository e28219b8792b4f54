#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chat/template.h"
#include "tokenizer/tokenizer.h"

namespace fastsft::fuzz {

// A tokenizer whose ids tell their bytes. Its tokens are special tokens, single bytes, and pairs of
// bytes that begin with white space or ">": pairs join the text of a template with the data after
// it.
class PairTokenizer : public Tokenizer {
 public:
  // `adds_bos`: BOS comes before each text. `separates_parts`: the result of prefixes_every_part.
  PairTokenizer(bool adds_bos, bool separates_parts)
      : adds_bos_(adds_bos),
        separates_parts_(separates_parts),
        specials_{"<s>", "</s>", "<unk>", "<think>", "</think>", "[INST]", "<|im_start|>"} {
    for (const std::string& name : ChatTemplates::instance().names()) {
      add(find_chat_template(name).stop_token);
    }
  }

  void encode(std::string_view text, SpecialText specials,
              std::vector<Token>& tokens) const override {
    for (size_t at = 0; at < text.size();) {
      const Token token = token_at(text.substr(at), specials);
      const auto begin = static_cast<uint32_t>(at);
      tokens.push_back({token.id, begin, begin + token.end});
      at += token.end;
    }
  }
  std::string decode(std::span<const int32_t> ids, bool) const override {
    std::string text;
    for (const int32_t id : ids) text += token_text(id);
    return text;
  }
  int32_t vocab_size() const override {
    return first_pair() + static_cast<int32_t>(256 * kFirsts.size());
  }
  std::string token_text(int32_t id) const override {
    if (id < kFirstSpecial) return std::string(1, static_cast<char>(id));
    if (id < first_pair()) return specials_.at(id - kFirstSpecial);
    const int32_t pair = id - first_pair();
    return {kFirsts.at(pair / 256), static_cast<char>(pair % 256)};
  }
  int32_t find_token(std::string_view text) const override {
    for (size_t i = 0; i < specials_.size(); ++i) {
      if (specials_[i] == text) return kFirstSpecial + static_cast<int32_t>(i);
    }
    return -1;
  }
  NamedIds named() const override {
    return {kFirstSpecial, kFirstSpecial + 1, kFirstSpecial + 2, -1};
  }
  bool adds_bos() const override { return adds_bos_; }
  bool adds_eos() const override { return false; }
  bool is_special(int32_t id) const override { return id >= kFirstSpecial && id < first_pair(); }
  // The tags of thoughts are found in data, too, as in published tokenizers.
  bool is_control(int32_t id) const override {
    return is_special(id) && !token_text(id).ends_with("think>");
  }
  bool legacy() const override { return true; }
  bool prefixes_every_part() const override { return separates_parts_; }
  bool cuts_before_spaces() const override { return false; }

 private:
  static constexpr int32_t kFirstSpecial = 256;
  static constexpr std::string_view kFirsts = " \n>";

  static int32_t byte(char c) { return static_cast<unsigned char>(c); }
  int32_t first_pair() const { return kFirstSpecial + static_cast<int32_t>(specials_.size()); }

  void add(const std::string& text) {
    if (find_token(text) < 0) specials_.push_back(text);
  }

  // Returns the token at the beginning of `text`, which is not empty.
  Token token_at(std::string_view text, SpecialText specials) const {
    if (const int32_t special = special_at(text, specials); special >= 0) {
      return {kFirstSpecial + special, 0, static_cast<uint32_t>(specials_[special].size())};
    }
    const size_t first = kFirsts.find(text.front());
    if (first == kFirsts.npos || text.size() == 1) return {byte(text.front()), 0, 1};
    return {first_pair() + 256 * static_cast<int32_t>(first) + byte(text[1]), 0, 2};
  }

  // Returns the number of the special token at the beginning of `text`; -1 if there is none.
  int32_t special_at(std::string_view text, SpecialText specials) const {
    for (size_t i = 0; i < specials_.size(); ++i) {
      const auto number = static_cast<int32_t>(i);
      const bool is_found = specials == SpecialText::kFind || !is_control(kFirstSpecial + number);
      if (is_found && text.starts_with(specials_[i])) return number;
    }
    return -1;
  }

  bool adds_bos_, separates_parts_;
  std::vector<std::string> specials_;
};

}  // namespace fastsft::fuzz
