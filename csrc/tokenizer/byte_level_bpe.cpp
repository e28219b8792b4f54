#include "tokenizer/byte_level_bpe.h"

#include <bit>

#include "core/error.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/not_native.h"

namespace fastsft {
namespace {

constexpr size_t kBlock = 64;
constexpr size_t kMaxPieces = size_t{1} << 24;  // what WordCache can hold

// Whether one of the next eight bytes is not ASCII; a block would end there.
bool is_high_soon(std::string_view text) {
  uint64_t bytes = 0;
  if (text.size() < sizeof bytes) return false;  // it is cheap to find out
  std::memcpy(&bytes, text.data(), sizeof bytes);
  return (bytes & 0x8080808080808080ull) != 0;
}

}  // namespace

ByteLevelBpe::ByteLevelBpe(const TokenizerJson& json, SplitPattern pattern, bool ignores_merges)
    : pattern_(pattern),
      ignores_merges_(ignores_merges),
      classify_(find_classifier()),
      pairs_(json.merges) {
  index_vocabulary(json);
}

void ByteLevelBpe::index_vocabulary(const TokenizerJson& json) {
  if (json.pieces.size() + json.added_tokens.size() >= kMaxPieces) {
    throw NotNative(concat("a vocabulary of ", json.pieces.size(), " pieces"));
  }
  byte_ids_.fill(-1);
  if (ignores_merges_) ids_by_bytes_.reserve(json.pieces.size());
  for (const VocabularyPiece& piece : json.pieces) {
    auto bytes = piece_to_bytes(piece.text);
    if (!bytes || bytes->empty()) continue;
    if (bytes->size() == 1) byte_ids_[static_cast<uint8_t>((*bytes)[0])] = piece.id;
    if (ignores_merges_) ids_by_bytes_.emplace(std::move(*bytes), piece.id);
  }
  for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    if (byte_ids_[byte] < 0) throw NotNative(concat("a vocabulary without the byte ", byte));
  }
}

std::span<const WordToken> ByteLevelBpe::merge_piece(std::string_view piece,
                                                     Scratch& scratch) const {
  auto& tokens = scratch.merged_;
  tokens.clear();
  if (ignores_merges_) {
    if (const auto found = ids_by_bytes_.find(piece); found != ids_by_bytes_.end()) {
      tokens.push_back({found->second, static_cast<uint32_t>(piece.size())});
      return tokens;
    }
  }
  for (const char byte : piece) tokens.push_back({byte_ids_[static_cast<uint8_t>(byte)], 1});
  scratch.merger_.merge(tokens);
  return tokens;
}

template <typename Output>
void ByteLevelBpe::encode_short(const WordCache::Key& key, uint32_t hash, std::string_view piece,
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
  scratch.packed_.clear();
  for (const WordToken& token : merge_piece(piece, scratch)) {
    scratch.packed_.push_back(pack_token(token.id, token.size));
  }
  writer.put(scratch.packed_);
  cache.insert(key, hash, scratch.packed_);
}

template <typename Output>
void ByteLevelBpe::encode_long(std::string_view piece, Scratch& scratch,
                               TokenWriter<Output>& writer) const {
  if (piece.size() <= WordCache::kMaxWord) {
    const auto key = WordCache::make_key(piece.data(), piece.size());
    return encode_short(key, WordCache::hash_of(key), piece, scratch, writer);
  }
  auto tokens = scratch.long_pieces_.find(piece);
  if (tokens.empty()) {
    tokens = merge_piece(piece, scratch);
    scratch.long_pieces_.insert(piece, tokens);
  }
  for (const WordToken& token : tokens) writer.put(token.id, token.size);
}

// Collects the ends of the pieces from `begin` on, as many as there is room for; returns the last.
size_t ByteLevelBpe::find_ends(std::string_view text, size_t begin, Scratch& scratch) const {
  size_t count = 0;
  size_t at = begin;
  while (at < text.size() && count + kBlock <= Scratch::kPieces) {
    const std::string_view rest = text.substr(at);
    BlockStarts block;
    if (!is_high_soon(rest)) block = find_block_starts(pattern_, rest, classify_);
    if (block.end == 0) {
      at += find_split_end(pattern_, rest, 0);
      scratch.ends_[count++] = static_cast<uint32_t>(at);
      continue;
    }
    for (uint64_t starts = block.starts & ~1ull; starts != 0; starts &= starts - 1) {
      scratch.ends_[count++] = static_cast<uint32_t>(at + std::countr_zero(starts));
    }
    at += block.end;
    if (at == text.size()) scratch.ends_[count++] = static_cast<uint32_t>(at);
  }
  scratch.num_ends_ = count;
  return at;
}

// Keys first, so that the cache lines are on their way when they are needed.
template <typename Output>
void ByteLevelBpe::encode_pieces(std::string_view text, size_t begin, Scratch& scratch,
                                 TokenWriter<Output>& writer) const {
  size_t at = begin;
  for (size_t i = 0; i < scratch.num_ends_; ++i) {
    const size_t size = scratch.ends_[i] - at;
    const bool is_loadable = size <= WordCache::kMaxWord && at + WordCache::kLoaded <= text.size();
    scratch.keys_[i] = is_loadable ? WordCache::load_key(text.data() + at, size) : WordCache::Key();
    scratch.hashes_[i] = WordCache::hash_of(scratch.keys_[i]);
    scratch.cache_.prefetch(scratch.hashes_[i]);
    at = scratch.ends_[i];
  }
  at = begin;
  for (size_t i = 0; i < scratch.num_ends_; ++i) {
    const std::string_view piece = text.substr(at, scratch.ends_[i] - at);
    at = scratch.ends_[i];
    if (scratch.keys_[i].high != 0) {
      encode_short(scratch.keys_[i], scratch.hashes_[i], piece, scratch, writer);
    } else {
      encode_long(piece, scratch, writer);
    }
  }
}

template <typename Output>
void ByteLevelBpe::encode(std::string_view text, uint32_t offset, Scratch& scratch,
                          std::vector<Output>& tokens) const {
  TokenWriter<Output> writer(tokens, offset);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = find_ends(text, begin, scratch);
    encode_pieces(text, begin, scratch, writer);
    begin = end;
  }
}

template void ByteLevelBpe::encode(std::string_view, uint32_t, Scratch&, std::vector<Token>&) const;
template void ByteLevelBpe::encode(std::string_view, uint32_t, Scratch&,
                                   std::vector<int32_t>&) const;

}  // namespace fastsft
