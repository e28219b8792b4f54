#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/bpe_merger.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/word_cache.h"

namespace fastsft {

// SentencePiece's BPE over one run of plain text: the ids of `SentencePieceProcessor.encode`, with
// byte ranges. Where the vocabulary allows it the text is cut before each run of spaces and words
// are cached.
class SentencePieceBpe {
 public:
  explicit SentencePieceBpe(SentencePieceModel model);

  // Buffers and word cache of one thread; borrowed for a call, kept warm in between.
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

  // Appends the tokens of `text`, whose first byte has offset `offset`. With `space_first` as if a
  // space stood before it (an empty text then gives the lone mark).
  void encode(std::string_view text, uint32_t offset, bool space_first, Scratch& scratch,
              std::vector<Token>& tokens) const;

  const SentencePieceModel& model() const { return model_; }
  bool cuts_before_spaces() const { return table_.cuts_before_spaces(); }

 private:
  std::span<const WordToken> encode_word(std::string_view word, Scratch& scratch) const;
  std::span<const WordToken> merge_word(std::string_view word, Scratch& scratch) const;
  void append_symbol(const Symbol& symbol, std::string_view bytes,
                     std::vector<WordToken>& tokens) const;

  SentencePieceModel model_;
  MergeTable table_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;
};

class SentencePieceBpe::Scratch {
 public:
  explicit Scratch(const MergeTable& table) : merger_(table) {}

 private:
  friend class SentencePieceBpe;

  WordCache cache_;
  BpeMerger merger_;
  std::vector<Symbol> symbols_;
  std::vector<WordToken> tokens_;
  std::string prefixed_;
};

}  // namespace fastsft
