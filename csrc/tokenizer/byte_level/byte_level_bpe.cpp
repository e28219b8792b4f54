#include "tokenizer/byte_level/byte_level_bpe.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "core/error.h"
#include "tokenizer/bpe/single_token_proof.h"
#include "tokenizer/byte_level/byte_alphabet.h"
#include "tokenizer/files/unsupported_tokenizer.h"

namespace fastsft {
namespace {

// Returns true if one of the next eight bytes is not ASCII. A block would end there.
bool is_high_soon(std::string_view text) {
  uint64_t bytes = 0;
  if (text.size() < sizeof bytes) return false;  // a wrong guess costs little for a short text
  std::memcpy(&bytes, text.data(), sizeof bytes);
  return (bytes & 0x8080808080808080ull) != 0;
}

PairTable make_pairs(const TokenizerJson& json) {
  if (json.pieces.size() + json.added_tokens.size() >= PairTable::kMaxIds) {
    throw UnsupportedTokenizer(concat("a vocabulary of ", json.pieces.size(), " pieces"));
  }
  if (json.merges.size() >= PairTable::kNone) {
    throw UnsupportedTokenizer(concat(json.merges.size(), " merges"));
  }
  PairTable pairs(json.merges.size());
  for (uint32_t rank = 0; rank < json.merges.size(); ++rank) {
    const auto& [left, right, merged] = json.merges[rank];
    // if a pair occurs twice, the last merge counts, as in `tokenizers`
    pairs.put(left, right, {rank, merged});
  }
  return pairs;
}

}  // namespace

ByteLevelBpe::ByteLevelBpe(const TokenizerJson& json, SplitPattern pattern, bool ignores_merges)
    : pattern_(pattern),
      ignores_merges_(ignores_merges),
      classify_(byte_classifier()),
      pairs_(make_pairs(json)),
      whole_words_(json.pieces.size()) {
  index_bytes(json);
  index_whole_pieces(json);
  pairs_.make_square(*std::min_element(byte_ids_.begin(), byte_ids_.end()));
}

void ByteLevelBpe::index_bytes(const TokenizerJson& json) {
  byte_ids_.fill(-1);
  for (const VocabularyPiece& piece : json.pieces) {
    // characters in the byte alphabet have at most two bytes
    if (piece.text.empty() || piece.text.size() > 2) continue;
    const auto bytes = piece_to_bytes(piece.text);
    if (bytes && bytes->size() == 1) byte_ids_[static_cast<uint8_t>((*bytes)[0])] = piece.id;
  }
  for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    if (byte_ids_[byte] < 0)
      throw UnsupportedTokenizer(concat("a vocabulary without the byte ", byte));
  }
}

void ByteLevelBpe::index_whole_pieces(const TokenizerJson& json) {
  // Tokens that always result from merging their own bytes. If merges are ignored, every piece is
  // such a token.
  std::optional<SingleTokenProof> proven;
  if (!ignores_merges_) {
    proven.emplace(pairs_, json.pieces.size() + json.added_tokens.size());
    for (const int32_t id : byte_ids_) proven->add_symbol(id);
    for (uint32_t rank = 0; rank < json.merges.size(); ++rank) {
      const auto& [left, right, merged] = json.merges[rank];
      proven->add(left, right, {rank, merged});
    }
  }
  std::string bytes;
  for (const VocabularyPiece& piece : json.pieces) {
    if (proven && !proven->contains(piece.id)) continue;
    bytes.clear();
    if (!append_piece_bytes(piece.text, bytes) || bytes.empty()) continue;
    if (bytes.size() > WordCache::kMaxWord) {
      whole_pieces_.add(bytes, piece.id);
    } else {
      whole_words_.add(WordCache::make_key(bytes.data(), bytes.size()), piece.id);
    }
  }
}

void ByteLevelBpe::list_bytes(std::string_view piece, std::vector<WordToken>& tokens) const {
  tokens.resize(piece.size());
  for (size_t i = 0; i < piece.size(); ++i) {
    tokens[i] = {byte_ids_[static_cast<uint8_t>(piece[i])], 1};
  }
}

std::span<const WordToken> ByteLevelBpe::merge_piece(std::string_view piece,
                                                     Scratch& scratch) const {
  list_bytes(piece, scratch.merged_);
  scratch.merger_.merge(scratch.merged_);
  return scratch.merged_;
}

template <typename Output>
void ByteLevelBpe::encode_short(std::string_view piece, const WordCache::Key& key, uint32_t hash,
                                Scratch& scratch, TokenWriter<Output>& writer) const {
  scratch.packed_.clear();
  const int32_t whole = whole_words_.find(key, hash);
  if (whole != WordIndex::kMissing) {
    scratch.packed_.push_back(pack_token(whole, static_cast<uint32_t>(piece.size())));
  } else {
    for (const WordToken& token : merge_piece(piece, scratch)) {
      scratch.packed_.push_back(pack_token(token.id, token.size));
    }
  }
  writer.put(scratch.packed_);
  scratch.cache_.insert(key, hash, scratch.packed_);
  scratch.missing_.count_one();
}

// Merges several words in turns and puts them into the cache.
void ByteLevelBpe::merge_side_by_side(std::span<const uint32_t> words, Scratch& scratch) const {
  const WordBatch& batch = scratch.batch_;
  std::array<uint32_t, Scratch::kSideBySide> merged;
  size_t next = 0;
  const auto begin = [&](size_t lane) {
    if (next == words.size()) return false;
    merged[lane] = words[next++];
    list_bytes(batch.word(merged[lane]), scratch.merged_);
    scratch.lanes_[lane].begin(pairs_, scratch.merged_);
    return true;
  };
  const auto finish = [&](size_t lane) {
    const WordCache::Key& key = batch.key(merged[lane]);
    const uint32_t hash = batch.hash(merged[lane]);
    if (scratch.cache_.find(key, hash) != nullptr) return;  // the word occurs twice in the batch
    scratch.packed_.clear();
    scratch.lanes_[lane].visit_tokens(
        [&](int32_t id, uint32_t size) { scratch.packed_.push_back(pack_token(id, size)); });
    scratch.cache_.insert(key, hash, scratch.packed_);
  };
  size_t num_lanes = 0;
  while (num_lanes < Scratch::kSideBySide && begin(num_lanes)) ++num_lanes;
  while (num_lanes > 0) {
    for (size_t lane = 0; lane < num_lanes; ++lane) {
      if (scratch.lanes_[lane].join_best(pairs_)) continue;
      finish(lane);
      if (begin(lane)) continue;
      --num_lanes;
      scratch.lanes_[lane] = scratch.lanes_[num_lanes];
      merged[lane] = merged[num_lanes];
      --lane;
    }
  }
}

template <typename Output>
void ByteLevelBpe::encode_long(std::string_view piece, Scratch& scratch,
                               TokenWriter<Output>& writer) const {
  auto tokens = scratch.long_pieces_.find(piece);
  if (tokens.empty()) {
    const int32_t whole = whole_pieces_.find(piece);
    if (whole != TextIndex::kMissing) {
      return writer.put(whole, static_cast<uint32_t>(piece.size()));
    }
    tokens = merge_piece(piece, scratch);
    scratch.long_pieces_.insert(piece, tokens);
  }
  for (const WordToken& token : tokens) writer.put(token.id, token.size);
}

// Collects the pieces' ends from `begin` on, as many as `ends_` has room for. Returns the last end.
size_t ByteLevelBpe::find_ends(std::string_view text, size_t begin, Scratch& scratch) const {
  size_t count = 0;
  size_t at = begin;
  while (at < text.size() && count + Scratch::kBlock <= WordBatch::kMaxWords) {
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

template <typename Output>
void ByteLevelBpe::encode(std::string_view text, uint32_t offset, Scratch& scratch,
                          std::vector<Output>& tokens) const {
  TokenWriter<Output> writer(tokens, offset);
  const auto encode_other = [&](std::string_view piece, const WordCache::Key& key, uint32_t hash) {
    if (piece.size() <= WordCache::kMaxWord) {
      encode_short(piece, key, hash, scratch, writer);
    } else {
      encode_long(piece, scratch, writer);
    }
  };
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = find_ends(text, begin, scratch);
    scratch.batch_.load(text, begin, std::span(scratch.ends_).first(scratch.num_ends_),
                        scratch.cache_);
    merge_side_by_side(scratch.missing_.resolve(scratch.batch_, whole_words_, scratch.cache_),
                       scratch);
    scratch.batch_.write(scratch.cache_, writer, encode_other);
    begin = end;
  }
  writer.flush();
}

template void ByteLevelBpe::encode(std::string_view, uint32_t, Scratch&, std::vector<Token>&) const;
template void ByteLevelBpe::encode(std::string_view, uint32_t, Scratch&,
                                   std::vector<int32_t>&) const;

}  // namespace fastsft
