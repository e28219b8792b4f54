#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/long_word_cache.h"
#include "tokenizer/pair_merger.h"
#include "tokenizer/pair_table.h"
#include "tokenizer/split_blocks.h"
#include "tokenizer/split_pattern.h"
#include "tokenizer/token_writer.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/word_cache.h"

namespace fastsft {

// Byte-level BPE over one run of plain text: split by the pattern, each piece merged once and
// remembered. Pieces of ASCII are found 64 bytes at a time.
class ByteLevelBpe {
 public:
  // With `ignores_merges` a piece that is in the vocabulary is that token, whatever its merges
  // say. Throws NotNative when a byte has no token or the vocabulary is larger than 2^24.
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
  void index_vocabulary(const TokenizerJson& json);
  size_t find_ends(std::string_view text, size_t begin, Scratch& scratch) const;
  template <typename Output>
  void encode_pieces(std::string_view text, size_t begin, Scratch& scratch,
                     TokenWriter<Output>& writer) const;
  template <typename Output>
  void encode_short(const WordCache::Key& key, uint32_t hash, std::string_view piece,
                    Scratch& scratch, TokenWriter<Output>& writer) const;
  template <typename Output>
  void encode_long(std::string_view piece, Scratch& scratch, TokenWriter<Output>& writer) const;
  std::span<const WordToken> merge_piece(std::string_view piece, Scratch& scratch) const;

  SplitPattern pattern_;
  bool ignores_merges_;
  ClassifyBytes classify_;
  PairTable pairs_;
  std::array<int32_t, 256> byte_ids_{};
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>> ids_by_bytes_;
};

class ByteLevelBpe::Scratch {
 public:
  explicit Scratch(const ByteLevelBpe& bpe) : cache_(kBuckets), merger_(bpe.pairs_) {}

 private:
  friend class ByteLevelBpe;
  static constexpr size_t kBuckets = size_t{1} << 18;  // 16 MiB where they are used
  static constexpr size_t kPieces = 256;               // at a time

  WordCache cache_;
  LongWordCache long_pieces_;
  PairMerger merger_;
  std::vector<WordToken> merged_;
  std::vector<PackedToken> packed_;
  size_t num_ends_ = 0;
  std::array<uint32_t, kPieces> ends_;  // of the pieces that are encoded next
  std::array<uint32_t, kPieces> hashes_;
  std::array<WordCache::Key, kPieces> keys_;
};

}  // namespace fastsft
