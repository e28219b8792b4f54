#include "tokenizer/sentencepiece/sentencepiece_bpe.h"

#include <algorithm>

#include "core/utf8.h"
#include "tokenizer/bpe/single_token_proof.h"
#include "tokenizer/bpe/token_writer.h"

namespace fastsft {

SentencePieceBpe::SentencePieceBpe(SentencePieceModel model)
    : SentencePieceBpe(std::move(model), derive_merge_rules(model), WordRule::kRunOfSpaces) {}

SentencePieceBpe::SentencePieceBpe(SentencePieceModel&& model, const MergeRules& rules,
                                   WordRule rule)
    : model_(std::move(model)),
      table_(rules),
      whole_words_(model_.pieces.size()),
      rule_(rule),
      cuts_(rule == WordRule::kEverySpace || table_.cuts_before_spaces()) {
  index_whole_words(rules);
}

// Collects the words that always become a single token. A space in a text is read as U+2581, so a
// piece with a space character never matches and is not proven.
void SentencePieceBpe::index_whole_words(const MergeRules& rules) {
  SingleTokenProof proven(table_.pairs(), table_.num_symbols());
  for (const auto& [character, symbol] : rules.characters) {
    if (character != U' ') proven.add_symbol(symbol);
  }
  std::vector<MergeRules::Rule> ordered = rules.rules;
  std::ranges::stable_sort(ordered, {}, &MergeRules::Rule::rank);
  for (const auto& [left, right, rank, symbol] : ordered) {
    proven.add(left, right, {static_cast<uint32_t>(rank), symbol});
  }
  std::string word;
  for (size_t id = 0; id < model_.pieces.size(); ++id) {
    const ScoredPiece& piece = model_.pieces[id];
    const bool is_normal = piece.type == PieceType::kNormal && !piece.text.empty();
    if (!is_normal || !proven.contains(id)) continue;
    word.clear();
    append_with_spaces(piece.text, word);
    if (word.size() > WordCache::kMaxWord) {
      long_whole_words_.add(word, id);
    } else {
      whole_words_.add(WordCache::make_key(word.data(), word.size()), id);
    }
  }
}

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

void SentencePieceBpe::append_symbol(const WordToken& symbol, std::string_view bytes,
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

// Returns the symbol for the character at `at` and sets `size`. A character that is cut off by the
// text's end has no symbol.
int32_t SentencePieceBpe::symbol_at(std::string_view text, size_t at, size_t& size) const {
  size = utf8_char_size(static_cast<unsigned char>(text[at]));
  if (size <= text.size() - at) return table_.find_character(utf8_code_point(text, at));
  size = text.size() - at;
  return MergeTable::kUnknown;
}

std::span<const WordToken> SentencePieceBpe::merge_word(std::string_view word,
                                                        Scratch& scratch) const {
  scratch.tokens_.clear();
  const bool is_long = word.size() > WordCache::kMaxWord;
  const int32_t whole = is_long ? long_whole_words_.find(word) : TextIndex::kMissing;
  if (whole != TextIndex::kMissing) {
    scratch.tokens_.push_back({whole, static_cast<uint32_t>(word.size())});
    return scratch.tokens_;
  }
  auto& symbols = scratch.symbols_;
  symbols.clear();
  size_t size = 0;
  for (size_t at = 0; at < word.size(); at += size) {
    const int32_t id = symbol_at(word, at, size);
    symbols.push_back({id, static_cast<uint32_t>(size)});
  }
  scratch.merger_.merge(symbols);
  size_t at = 0;
  for (const WordToken& symbol : symbols) {
    append_symbol(symbol, word.substr(at, symbol.size), scratch.tokens_);
    at += symbol.size;
  }
  return scratch.tokens_;
}

// True if a word may be cut between two symbols. Unknown neighbours must not be separated if they
// become one unknown token.
bool SentencePieceBpe::may_cut(int32_t left, int32_t right) const {
  const auto is_piece = [&](int32_t symbol) { return symbol >= 0 && symbol < table_.num_pieces(); };
  if (model_.bytes.empty() && !is_piece(left) && !is_piece(right)) return false;
  return !table_.can_join(left, right);
}

// Returns the end of the fragment that begins at `begin`. No token can cross that end.
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

// Appends the tokens for a word with at most WordCache::kMaxWord bytes. Most new words are a known
// word with a comma.
void SentencePieceBpe::append_short(std::string_view word, std::vector<PackedToken>& tokens,
                                    Scratch& scratch) const {
  const auto key = WordCache::make_key(word.data(), word.size());
  const uint32_t hash = WordCache::hash_of(key);
  if (const WordCache::Entry* entry = scratch.cache_.find(key, hash)) {
    const auto known = scratch.cache_.tokens(*entry);
    tokens.insert(tokens.end(), known.begin(), known.end());
    return;
  }
  const int32_t whole = whole_words_.find(key, hash);
  if (whole != WordIndex::kMissing) {
    tokens.push_back(pack_token(whole, static_cast<uint32_t>(word.size())));
    return scratch.cache_.insert(key, hash, {&tokens.back(), 1});
  }
  size_t end = find_fragment_end(word, 0);
  const size_t first = tokens.size();
  if (end == word.size()) {
    for (const WordToken& token : merge_word(word, scratch)) {
      tokens.push_back(pack_token(token.id, token.size));
    }
  } else {
    for (size_t at = 0; at < word.size(); at = end) {
      end = find_fragment_end(word, at);
      append_short(word.substr(at, end - at), tokens, scratch);
    }
  }
  scratch.cache_.insert(key, hash, std::span(tokens).subspan(first));
}

template <typename Output>
void SentencePieceBpe::encode_long(std::string_view fragment, Scratch& scratch,
                                   TokenWriter<Output>& writer) const {
  auto tokens = scratch.long_words_.find(fragment);
  if (tokens.empty()) {
    tokens = merge_word(fragment, scratch);
    scratch.long_words_.insert(fragment, tokens);
  }
  for (const WordToken& token : tokens) writer.put(token.id, token.size);
}

template <typename Output>
void SentencePieceBpe::encode_fragments(std::string_view word, Scratch& scratch,
                                        TokenWriter<Output>& writer) const {
  for (size_t at = 0; at < word.size();) {
    const size_t end = find_fragment_end(word, at);
    const std::string_view fragment = word.substr(at, end - at);
    if (fragment.size() > WordCache::kMaxWord) {
      encode_long(fragment, scratch, writer);
    } else {
      encode_word(fragment, scratch, writer);
    }
    at = end;
  }
}

template <typename Output>
void SentencePieceBpe::encode_word(std::string_view word, Scratch& scratch,
                                   TokenWriter<Output>& writer) const {
  if (word.size() > WordCache::kMaxWord) return encode_fragments(word, scratch, writer);
  if (word.empty()) return;
  scratch.packed_.clear();
  append_short(word, scratch.packed_, scratch);
  writer.put(scratch.packed_);
}

// Encodes the words [begin, ends[0]), [ends[0], ends[1]), ...
template <typename Output>
void SentencePieceBpe::encode_words(std::string_view text, size_t begin,
                                    std::span<const uint32_t> ends, Scratch& scratch,
                                    TokenWriter<Output>& writer) const {
  scratch.batch_.load(text, begin, ends, scratch.cache_);
  scratch.missing_.resolve(scratch.batch_, whole_words_, scratch.cache_);
  scratch.batch_.write(scratch.cache_, writer,
                       [&](std::string_view word, const WordCache::Key&, uint32_t) {
                         encode_word(word, scratch, writer);
                         scratch.missing_.count_one();
                       });
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
    if (space_first) ++tokens[first].begin;  // the prefix space is not in the text
  }
}

template void SentencePieceBpe::encode(std::string_view, uint32_t, bool, Scratch&,
                                       std::vector<Token>&) const;
template void SentencePieceBpe::encode(std::string_view, uint32_t, bool, Scratch&,
                                       std::vector<int32_t>&) const;

}  // namespace fastsft
