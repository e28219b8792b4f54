#include "tokenizer/sentencepiece_bpe.h"

#include "core/utf8.h"
#include "tokenizer/word_boundary.h"

namespace fastsft {

SentencePieceBpe::SentencePieceBpe(SentencePieceModel model)
    : model_(std::move(model)), table_(model_) {}

SentencePieceBpe::Borrowed::Borrowed(const SentencePieceBpe& bpe) : bpe_(bpe) {
  const std::lock_guard lock(bpe.mutex_);
  if (bpe.idle_.empty()) {
    scratch_ = std::make_unique<Scratch>(bpe.table_);
  } else {
    scratch_ = std::move(bpe.idle_.back());
    bpe.idle_.pop_back();
  }
}

SentencePieceBpe::Borrowed::~Borrowed() {
  const std::lock_guard lock(bpe_.mutex_);
  bpe_.idle_.push_back(std::move(scratch_));
}

void SentencePieceBpe::append_symbol(const Symbol& symbol, std::string_view bytes,
                                     std::vector<WordToken>& tokens) const {
  if (symbol.id >= 0 && symbol.id < table_.num_pieces()) {
    tokens.push_back({symbol.id, symbol.size});
  } else if (!model_.bytes.empty()) {
    for (const char byte : bytes) tokens.push_back({model_.bytes[static_cast<uint8_t>(byte)], 1});
  } else if (!tokens.empty() && tokens.back().id == model_.unk_id) {
    tokens.back().size += symbol.size;  // SentencePiece writes one <unk> for a run of unknowns
  } else {
    tokens.push_back({model_.unk_id, symbol.size});
  }
}

std::span<const WordToken> SentencePieceBpe::merge_word(std::string_view word,
                                                        Scratch& scratch) const {
  auto& symbols = scratch.symbols_;
  symbols.clear();
  for (size_t at = 0; at < word.size();) {
    const size_t size = utf8_char_size(static_cast<unsigned char>(word[at]));
    const int32_t id = table_.find_character(word.substr(at, size));
    symbols.push_back({id, static_cast<uint32_t>(size)});
    at += size;
  }
  scratch.merger_.merge(symbols);
  scratch.tokens_.clear();
  size_t at = 0;
  for (const Symbol& symbol : symbols) {
    append_symbol(symbol, word.substr(at, symbol.size), scratch.tokens_);
    at += symbol.size;
  }
  return scratch.tokens_;
}

std::span<const WordToken> SentencePieceBpe::encode_word(std::string_view word,
                                                         Scratch& scratch) const {
  if (word.size() > WordCache::kMaxShort) {
    if (word.size() > WordCache::kMaxLong) return merge_word(word, scratch);
    if (const auto known = scratch.cache_.find_long(word); !known.empty()) return known;
    const auto tokens = merge_word(word, scratch);
    scratch.cache_.insert_long(word, tokens);
    return tokens;
  }
  const WordCache::Key key = WordCache::make_key(word);
  if (const auto known = scratch.cache_.find(key); !known.empty()) return known;
  const auto tokens = merge_word(word, scratch);
  scratch.cache_.insert(key, tokens);
  return tokens;
}

void SentencePieceBpe::encode(std::string_view text, uint32_t offset, bool space_first,
                              Scratch& scratch, std::vector<Token>& tokens) const {
  const bool has_marks = text.find(kSpaceMark) != std::string_view::npos;
  const auto first_word = [&] {
    return table_.cuts_before_spaces() ? find_word_end(text, 0, has_marks) : text.size();
  };
  size_t at = 0;
  if (space_first) {
    at = first_word();
    scratch.prefixed_.assign(1, ' ').append(text, 0, at);
    uint32_t missing = 1;  // the space that is not in the text
    for (const WordToken& token : encode_word(scratch.prefixed_, scratch)) {
      const uint32_t end = offset + token.size - missing;
      tokens.push_back({token.id, offset, end});
      missing = 0;
      offset = end;
    }
  }
  while (at < text.size()) {
    const size_t end =
        table_.cuts_before_spaces() ? find_word_end(text, at, has_marks) : text.size();
    for (const WordToken& token : encode_word(text.substr(at, end - at), scratch)) {
      tokens.push_back({token.id, offset, offset + token.size});
      offset += token.size;
    }
    at = end;
  }
}

}  // namespace fastsft
