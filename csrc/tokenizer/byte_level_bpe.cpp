#include "tokenizer/byte_level_bpe.h"

#include <bit>

#include "core/error.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/not_native.h"

namespace fastsft {
namespace {

constexpr size_t kBlock = 64;

// Whether one of the next eight bytes is not ASCII; a block would end there.
bool is_high_soon(std::string_view text) {
  uint64_t bytes = 0;
  std::memcpy(&bytes, text.data(), std::min(text.size(), sizeof bytes));
  return (bytes & 0x8080808080808080ull) != 0;
}

}  // namespace

// Collects the tokens of a block before they go to the vector together.
class ByteLevelBpe::Writer {
 public:
  Writer(uint32_t offset, std::vector<Token>& tokens) : offset_(offset), tokens_(tokens) {}
  ~Writer() { flush(); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void write(WordToken token) {
    buffer_[size_++] = {token.id, offset_, offset_ + token.size};
    offset_ += token.size;
  }
  void write_slot(const PretokenCache::Slot& slot) {
    write(PretokenCache::unpack(slot.tokens[0]));
    for (size_t i = 1; i < PretokenCache::kMaxPacked && slot.tokens[i] != 0; ++i) {
      write(PretokenCache::unpack(slot.tokens[i]));
    }
  }
  void write_all(std::span<const WordToken> tokens) {
    for (const WordToken& token : tokens) {
      write(token);
      if (size_ >= kBlock) flush();
    }
  }
  // At most kBlock tokens may be written between two calls, but by write_all.
  void flush() {
    tokens_.insert(tokens_.end(), buffer_, buffer_ + size_);
    size_ = 0;
  }

 private:
  uint32_t offset_;
  std::vector<Token>& tokens_;
  size_t size_ = 0;
  Token buffer_[2 * kBlock];
};

ByteLevelBpe::ByteLevelBpe(const TokenizerJson& json, SplitPattern pattern, bool ignores_merges)
    : pattern_(pattern),
      ignores_merges_(ignores_merges),
      classify_(find_classifier()),
      pairs_(json.merges) {
  index_vocabulary(json);
}

void ByteLevelBpe::index_vocabulary(const TokenizerJson& json) {
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
  auto& tokens = scratch.merged;
  tokens.clear();
  if (ignores_merges_) {
    if (const auto found = ids_by_bytes_.find(piece); found != ids_by_bytes_.end()) {
      tokens.push_back({found->second, static_cast<uint32_t>(piece.size())});
      return tokens;
    }
  }
  for (const char byte : piece) tokens.push_back({byte_ids_[static_cast<uint8_t>(byte)], 1});
  scratch.merger.merge(tokens);
  return tokens;
}

std::span<const WordToken> ByteLevelBpe::encode_long(std::string_view piece,
                                                     Scratch& scratch) const {
  if (piece.size() > PretokenCache::kMaxLong) return merge_piece(piece, scratch);
  if (const auto known = scratch.cache.find_long(piece); !known.empty()) return known;
  const auto tokens = merge_piece(piece, scratch);
  scratch.cache.insert_long(piece, tokens);
  return tokens;
}

std::span<const WordToken> ByteLevelBpe::encode_unknown(std::string_view piece,
                                                        PretokenCache::Key key,
                                                        Scratch& scratch) const {
  if (const auto known = scratch.cache.find_long(piece); !known.empty()) return known;
  const auto tokens = merge_piece(piece, scratch);
  if (PretokenCache::is_packable(tokens)) {
    scratch.cache.insert(key, tokens);
  } else {
    scratch.cache.insert_long(piece, tokens);
  }
  return tokens;
}

// The piece is the first `size` bytes of `text`.
inline void ByteLevelBpe::write_piece(std::string_view text, size_t size, Scratch& scratch,
                                      Writer& writer) const {
  if (size > PretokenCache::kMaxShort) {
    return writer.write_all(encode_long(text.substr(0, size), scratch));
  }
  const auto key = PretokenCache::make_key(text.data(), size, text.size());
  if (const PretokenCache::Slot* slot = scratch.cache.find(key)) {
    writer.write_slot(*slot);
  } else {
    writer.write_all(encode_unknown(text.substr(0, size), key, scratch));
  }
}

void ByteLevelBpe::write_block(std::string_view text, const BlockStarts& block, Scratch& scratch,
                               Writer& writer) const {
  uint64_t starts = block.starts & ~1ull;
  for (size_t begin = 0; begin < block.end;) {
    const size_t end = starts != 0 ? std::countr_zero(starts) : block.end;
    starts &= starts - 1;
    write_piece(text.substr(begin), end - begin, scratch, writer);
    begin = end;
  }
  writer.flush();
}

void ByteLevelBpe::encode(std::string_view text, uint32_t offset, Scratch& scratch,
                          std::vector<Token>& tokens) const {
  Writer writer(offset, tokens);
  while (!text.empty()) {
    size_t end = 0;
    if (!is_high_soon(text)) {
      const BlockStarts block = find_block_starts(pattern_, text, classify_);
      write_block(text, block, scratch, writer);
      end = block.end;
    }
    if (end == 0) {
      end = find_split_end(pattern_, text, 0);
      write_piece(text, end, scratch, writer);
      writer.flush();
    }
    text.remove_prefix(end);
  }
}

}  // namespace fastsft
