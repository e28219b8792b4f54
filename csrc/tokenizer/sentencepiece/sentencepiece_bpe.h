#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/bpe/merge_table.h"
#include "tokenizer/bpe/pair_merger.h"
#include "tokenizer/bpe/text_index.h"
#include "tokenizer/bpe/word_batch.h"
#include "tokenizer/bpe/word_cache.h"
#include "tokenizer/bpe/word_index.h"
#include "tokenizer/sentencepiece/sentencepiece_model.h"
#include "tokenizer/sentencepiece/word_starts.h"
#include "tokenizer/tokenizer.h"

namespace fastsft {

template <typename Output>
class TokenWriter;

// BPE for plain text without special tokens, in which U+2581 means a space. It gives the
// ids of `SentencePieceProcessor.encode`, with their byte ranges. If the vocabulary allows it, the
// text is cut into words, which are cached. An unknown word is cut into fragments wherever no token
// can cross the cut, and the fragments are merged.
class SentencePieceBpe {
 public:
  explicit SentencePieceBpe(SentencePieceModel model);
  // Uses the given merges, whose views may point into `model`. With WordRule::kEverySpace nothing
  // merges across a space, whatever the vocabulary says.
  SentencePieceBpe(SentencePieceModel&& model, const MergeRules& rules, WordRule rule);

  // A thread's buffers and word cache. A call borrows them; they keep their content between calls.
  class Scratch;
  class Borrowed {
   public:
    explicit Borrowed(const SentencePieceBpe& bpe);
    ~Borrowed();
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    Scratch& operator*() const { return *scratch_; }

   private:
    const SentencePieceBpe& bpe_;
    std::unique_ptr<Scratch> scratch_;
  };

  // Appends the tokens of `text`. `offset`: position of the text's first byte, for the byte ranges.
  // `space_first`: encode as if a space came before the text; an empty text then gives the token
  // U+2581. Output is Token or int32_t.
  template <typename Output>
  void encode(std::string_view text, uint32_t offset, bool space_first, Scratch& scratch,
              std::vector<Output>& tokens) const;

  const SentencePieceModel& model() const { return model_; }
  bool cuts_before_spaces() const { return cuts_; }

 private:
  template <typename Output>
  void encode_words(std::string_view text, size_t begin, std::span<const uint32_t> ends,
                    Scratch& scratch, TokenWriter<Output>& writer) const;
  template <typename Output>
  void encode_word(std::string_view word, Scratch& scratch, TokenWriter<Output>& writer) const;
  template <typename Output>
  void encode_fragments(std::string_view word, Scratch& scratch, TokenWriter<Output>& writer) const;
  template <typename Output>
  void encode_long(std::string_view fragment, Scratch& scratch, TokenWriter<Output>& writer) const;
  void append_short(std::string_view word, std::vector<PackedToken>& tokens,
                    Scratch& scratch) const;
  void index_whole_words(const MergeRules& rules);
  size_t find_fragment_end(std::string_view word, size_t begin) const;
  std::span<const WordToken> merge_word(std::string_view word, Scratch& scratch) const;
  void append_symbol(const WordToken& symbol, std::string_view bytes,
                     std::vector<WordToken>& tokens) const;
  bool may_cut(int32_t left, int32_t right) const;
  int32_t symbol_at(std::string_view text, size_t at, size_t& size) const;

  SentencePieceModel model_;
  MergeTable table_;
  // Words that are proven to be a single token.
  WordIndex whole_words_;
  TextIndex long_whole_words_;  // proven words that are too long for `whole_words_`
  WordRule rule_;
  bool cuts_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;
};

class SentencePieceBpe::Scratch {
 public:
  explicit Scratch(const MergeTable& table) : cache_(kBuckets), merger_(table.pairs()) {}

 private:
  friend class SentencePieceBpe;
  static constexpr size_t kBuckets = size_t{1} << 16;  // 4 MiB

  WordCache cache_;
  LongWordCache long_words_;
  PairMerger merger_;
  WordBatch batch_;
  CacheMisses missing_;
  std::vector<WordToken> symbols_;
  std::vector<WordToken> tokens_;
  std::vector<PackedToken> packed_;
  std::string prefixed_;
};

}  // namespace fastsft
