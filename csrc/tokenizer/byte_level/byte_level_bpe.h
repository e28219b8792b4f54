#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/bpe/merge_lanes.h"
#include "tokenizer/bpe/pair_merger.h"
#include "tokenizer/bpe/pair_table.h"
#include "tokenizer/bpe/text_index.h"
#include "tokenizer/bpe/token_writer.h"
#include "tokenizer/bpe/word_batch.h"
#include "tokenizer/bpe/word_cache.h"
#include "tokenizer/bpe/word_index.h"
#include "tokenizer/byte_level/split_blocks.h"
#include "tokenizer/byte_level/split_pattern.h"
#include "tokenizer/files/tokenizer_json.h"

namespace fastsft {

// Byte-level BPE for plain text without special tokens. The text is split by the pattern; each
// piece is merged once and then cached. Pieces in ASCII are found 64 bytes at a time.
class ByteLevelBpe {
 public:
  // `ignores_merges`: a piece that is in the vocabulary becomes that token, whatever the merges
  // say. Throws UnsupportedTokenizer if a byte has no token, or if the tables have no room for the
  // pieces (2^21) or merges (2^22).
  ByteLevelBpe(const TokenizerJson& json, SplitPattern pattern, bool ignores_merges);

  // A thread's caches and buffers.
  class Scratch;

  // Appends the tokens of `text`. `offset`: position of the text's first byte, for the byte ranges.
  // Output is Token, or int32_t for ids alone.
  template <typename Output>
  void encode(std::string_view text, uint32_t offset, Scratch& scratch,
              std::vector<Output>& tokens) const;

  // Replaces the processor's own classifier, for tests.
  void set_classifier(ClassifyBytes classify) { classify_ = classify; }

 private:
  void index_bytes(const TokenizerJson& json);
  void index_whole_pieces(const TokenizerJson& json);
  size_t find_ends(std::string_view text, size_t begin, Scratch& scratch) const;
  template <typename Output>
  void encode_short(std::string_view piece, const WordCache::Key& key, uint32_t hash,
                    Scratch& scratch, TokenWriter<Output>& writer) const;
  template <typename Output>
  void encode_long(std::string_view piece, Scratch& scratch, TokenWriter<Output>& writer) const;
  std::span<const WordToken> merge_piece(std::string_view piece, Scratch& scratch) const;
  void list_bytes(std::string_view piece, std::vector<WordToken>& tokens) const;
  void merge_side_by_side(std::span<const uint32_t> words, Scratch& scratch) const;

  SplitPattern pattern_;
  bool ignores_merges_;
  ClassifyBytes classify_;
  PairTable pairs_;
  std::array<int32_t, 256> byte_ids_{};
  // Pieces proven to be a single token, keyed by their bytes.
  WordIndex whole_words_;
  TextIndex whole_pieces_;  // proven pieces that are too long for `whole_words_`
};

class ByteLevelBpe::Scratch {
 public:
  explicit Scratch(const ByteLevelBpe& bpe) : cache_(kBuckets), merger_(bpe.pairs_) {}

 private:
  friend class ByteLevelBpe;
  // up to 16 MiB, which are allocated when used
  static constexpr size_t kBuckets = size_t{1} << 18;
  static constexpr size_t kBlock = 64;      // text bytes per step
  static constexpr size_t kSideBySide = 4;  // words that are merged in turns

  WordCache cache_;
  LongWordCache long_pieces_;
  PairMerger merger_;
  std::vector<WordToken> merged_;
  std::vector<PackedToken> packed_;
  WordBatch batch_;
  CacheMisses missing_;
  std::array<MergeLanes<16>, kSideBySide> lanes_;
  size_t num_ends_ = 0;
  std::array<uint32_t, WordBatch::kMaxWords> ends_;  // ends of the pieces that are encoded next
};

}  // namespace fastsft
