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

// Byte-level BPE over one run of plain text: split by the pattern, each piece merged once and
// remembered. Pieces of ASCII are found 64 bytes at a time.
class ByteLevelBpe {
 public:
  // With `ignores_merges` a piece that is in the vocabulary is that token, whatever its merges
  // say. Throws UnsupportedTokenizer when a byte has no token or there are more pieces (2^21) or
  // merges (2^22) than the tables hold.
  ByteLevelBpe(const TokenizerJson& json, SplitPattern pattern, bool ignores_merges);

  // Caches and buffers of one thread.
  class Scratch;

  // Appends the tokens of `text`, whose first byte has offset `offset`. Output is Token or, for
  // ids alone, int32_t.
  template <typename Output>
  void encode(std::string_view text, uint32_t offset, Scratch& scratch,
              std::vector<Output>& tokens) const;

  // Instead of the processor's own, for tests.
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
  // Pieces that are one token for sure, by their bytes.
  WordIndex whole_words_;
  TextIndex whole_pieces_;  // those too long for it
};

class ByteLevelBpe::Scratch {
 public:
  explicit Scratch(const ByteLevelBpe& bpe) : cache_(kBuckets), merger_(bpe.pairs_) {}

 private:
  friend class ByteLevelBpe;
  static constexpr size_t kBuckets = size_t{1} << 18;  // 16 MiB where they are used
  static constexpr size_t kBlock = 64;                 // bytes of text at a time
  static constexpr size_t kSideBySide = 4;             // words that are merged in turns

  WordCache cache_;
  LongWordCache long_pieces_;
  PairMerger merger_;
  std::vector<WordToken> merged_;
  std::vector<PackedToken> packed_;
  WordBatch batch_;
  CacheMisses missing_;
  std::array<MergeLanes<16>, kSideBySide> lanes_;
  size_t num_ends_ = 0;
  std::array<uint32_t, WordBatch::kMaxWords> ends_;  // of the pieces that are encoded next
};

}  // namespace fastsft
