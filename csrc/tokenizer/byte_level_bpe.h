#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/pair_merger.h"
#include "tokenizer/pair_table.h"
#include "tokenizer/pretoken_cache.h"
#include "tokenizer/split_blocks.h"
#include "tokenizer/split_pattern.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_json.h"

namespace fastsft {

// Byte-level BPE over one run of plain text: split by the pattern, each piece merged once and
// remembered. Pieces of ASCII are found 64 bytes at a time.
class ByteLevelBpe {
 public:
  // With `ignores_merges` a piece that is in the vocabulary is that token, whatever its merges
  // say. Throws NotNative when a byte has no token.
  ByteLevelBpe(const TokenizerJson& json, SplitPattern pattern, bool ignores_merges);

  // Caches and buffers of one thread.
  struct Scratch {
    explicit Scratch(const ByteLevelBpe& bpe) : merger(bpe.pairs_) {}
    PretokenCache cache;
    PairMerger merger;
    std::vector<WordToken> merged;
  };

  // Appends the tokens of `text`, whose first byte has offset `offset`.
  void encode(std::string_view text, uint32_t offset, Scratch& scratch,
              std::vector<Token>& tokens) const;

  // Instead of the processor's own, for tests.
  void set_classifier(ClassifyBytes classify) { classify_ = classify; }

 private:
  class Writer;
  void index_vocabulary(const TokenizerJson& json);
  void write_block(std::string_view text, const BlockStarts& block, Scratch& scratch,
                   Writer& writer) const;
  void write_piece(std::string_view text, size_t size, Scratch& scratch, Writer& writer) const;
  std::span<const WordToken> encode_unknown(std::string_view piece, PretokenCache::Key key,
                                            Scratch& scratch) const;
  std::span<const WordToken> encode_long(std::string_view piece, Scratch& scratch) const;
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

}  // namespace fastsft
