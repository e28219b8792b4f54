#include "tokenizer/sentencepiece_bpe.h"

#include <algorithm>

#include "core/utf8.h"
#include "tokenizer/token_writer.h"

namespace fastsft {

SentencePieceBpe::SentencePieceBpe(SentencePieceModel model)
    : model_(std::move(model)),
      table_(derive_merge_rules(model_)),
      rule_(WordRule::kRunOfSpaces),
      cuts_(table_.cuts_before_spaces()) {}

SentencePieceBpe::SentencePieceBpe(SentencePieceModel model, const MergeRules& rules, WordRule rule)
    : model_(std::move(model)),
      table_(rules),
      rule_(rule),
      cuts_(rule == WordRule::kEverySpace || table_.cuts_before_spaces()) {}

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
  } else if (model_.fuses_unknown && !tokens.empty() && tokens.back().id == model_.unk_id) {
    tokens.back().size += symbol.size;
  } else {
    tokens.push_back({model_.unk_id, symbol.size});
  }
}

// A character that the text breaks off has no symbol.
int32_t SentencePieceBpe::symbol_at(std::string_view text, size_t at, size_t& size) const {
  size = utf8_char_size(static_cast<unsigned char>(text[at]));
  if (size <= text.size() - at) return table_.find_character(utf8_code_point(text, at));
  size = text.size() - at;
  return MergeTable::kUnknown;
}

std::span<const WordToken> SentencePieceBpe::merge_word(std::string_view word,
                                                        Scratch& scratch) const {
  auto& symbols = scratch.symbols_;
  symbols.clear();
  size_t size = 0;
  for (size_t at = 0; at < word.size(); at += size) {
    const int32_t id = symbol_at(word, at, size);
    symbols.push_back({id, static_cast<uint32_t>(size)});
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

std::span<const PackedToken> SentencePieceBpe::merge_short(std::string_view word,
                                                           Scratch& scratch) const {
  scratch.packed_.clear();
  for (const WordToken& token : merge_word(word, scratch)) {
    scratch.packed_.push_back(pack_token(token.id, token.size));
  }
  return scratch.packed_;
}

// Unknown neighbours stay together where they become one token.
bool SentencePieceBpe::may_cut(int32_t left, int32_t right) const {
  if (left == MergeTable::kUnknown && right == MergeTable::kUnknown) return !model_.bytes.empty();
  return !table_.can_join(left, right);
}

// The end of what may merge with the character at `begin`.
size_t SentencePieceBpe::find_fragment_end(std::string_view word, size_t begin) const {
  size_t size = 0;
  int32_t left = symbol_at(word, begin, size);
  size_t at = begin + size;
  while (at < word.size()) {
    const int32_t right = symbol_at(word, at, size);
    if (may_cut(left, right)) break;
    left = right;
    at += size;
  }
  return at;
}

template <typename Output>
void SentencePieceBpe::encode_short(const WordCache::Key& key, uint32_t hash, std::string_view word,
                                    Scratch& scratch, TokenWriter<Output>& writer) const {
  WordCache& cache = scratch.cache_;
  if (const WordCache::Entry* entry = cache.find(key, hash)) {
    if (entry->count() <= WordCache::kInline) {
      writer.put_inline(entry->tokens, entry->count());
    } else {
      writer.put(cache.tokens(*entry));
    }
    return;
  }
  const auto tokens = merge_short(word, scratch);
  writer.put(tokens);
  cache.insert(key, hash, tokens);
}

template <typename Output>
void SentencePieceBpe::encode_long(std::string_view word, Scratch& scratch,
                                   TokenWriter<Output>& writer) const {
  for (size_t at = 0; at < word.size();) {
    const size_t end = find_fragment_end(word, at);
    const std::string_view fragment = word.substr(at, end - at);
    at = end;
    if (fragment.size() <= WordCache::kMaxWord) {
      const auto key = WordCache::make_key(fragment.data(), fragment.size());
      encode_short(key, WordCache::hash_of(key), fragment, scratch, writer);
      continue;
    }
    auto tokens = scratch.long_words_.find(fragment);
    if (tokens.empty()) {
      tokens = merge_word(fragment, scratch);
      scratch.long_words_.insert(fragment, tokens);
    }
    for (const WordToken& token : tokens) writer.put(token.id, token.size);
  }
}

template <typename Output>
void SentencePieceBpe::encode_word(std::string_view word, Scratch& scratch,
                                   TokenWriter<Output>& writer) const {
  if (word.size() > WordCache::kMaxWord) return encode_long(word, scratch, writer);
  if (word.empty()) return;
  const auto key = WordCache::make_key(word.data(), word.size());
  encode_short(key, WordCache::hash_of(key), word, scratch, writer);
}

// Words [begin, ends[0]), [ends[0], ends[1]), ... Keys first, so that the cache lines are on their
// way when they are needed.
template <typename Output>
void SentencePieceBpe::encode_words(std::string_view text, size_t begin,
                                    std::span<const uint32_t> ends, Scratch& scratch,
                                    TokenWriter<Output>& writer) const {
  std::array<WordCache::Key, WordStarts::kPart> keys;
  std::array<uint32_t, WordStarts::kPart> hashes;
  size_t at = begin;
  for (size_t i = 0; i < ends.size(); ++i) {
    const size_t size = ends[i] - at;
    const bool loadable = size <= WordCache::kMaxWord && at + WordCache::kLoaded <= text.size();
    keys[i] = loadable ? WordCache::load_key(text.data() + at, size) : WordCache::Key();
    hashes[i] = WordCache::hash_of(keys[i]);
    scratch.cache_.prefetch(hashes[i]);
    at = ends[i];
  }
  at = begin;
  for (size_t i = 0; i < ends.size(); ++i) {
    const std::string_view word = text.substr(at, ends[i] - at);
    at = ends[i];
    if (keys[i].high != 0) {
      encode_short(keys[i], hashes[i], word, scratch, writer);
    } else {
      encode_word(word, scratch, writer);
    }
  }
}

template <typename Output>
void SentencePieceBpe::encode(std::string_view text, uint32_t offset, bool space_first,
                              Scratch& scratch, std::vector<Output>& tokens) const {
  const size_t first = tokens.size();
  TokenWriter<Output> writer(tokens, space_first ? offset - 1 : offset);
  WordStarts starts(text, rule_);
  std::array<uint32_t, WordStarts::kPart> ends;
  size_t count = 0;
  size_t begin = 0;
  bool prefixed = space_first;
  const auto encode_prefixed = [&](size_t end) {
    scratch.prefixed_.assign(1, ' ').append(text, 0, end);
    encode_word<Output>(scratch.prefixed_, scratch, writer);
    prefixed = false;
    begin = end;
  };
  while (cuts_ && starts.next(ends, count)) {
    if (count == 0) continue;
    const size_t skipped = prefixed ? 1 : 0;
    if (prefixed) encode_prefixed(ends[0]);
    encode_words<Output>(text, begin, std::span(ends).subspan(skipped, count - skipped), scratch,
                         writer);
    begin = ends[count - 1];
  }
  if (prefixed) encode_prefixed(text.size());
  encode_word<Output>(text.substr(begin), scratch, writer);
  writer.flush();
  if constexpr (std::is_same_v<Output, Token>) {
    if (space_first) ++tokens[first].begin;  // the space in front of it is not in the text
  }
}

template void SentencePieceBpe::encode(std::string_view, uint32_t, bool, Scratch&,
                                       std::vector<Token>&) const;
template void SentencePieceBpe::encode(std::string_view, uint32_t, bool, Scratch&,
                                       std::vector<int32_t>&) const;

}  // namespace fastsft
