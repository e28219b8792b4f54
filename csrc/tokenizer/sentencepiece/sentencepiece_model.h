#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fastsft {

// U+2581, which SentencePiece writes in place of a space.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

// Appends `piece` with spaces in place of U+2581.
void append_with_spaces(std::string_view piece, std::string& text);

// Returns the byte for a piece such as "<0x41>", or nothing for another text.
std::optional<uint8_t> parse_byte_piece(std::string_view text);

enum class PieceType { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

struct ScoredPiece {
  std::string text;
  float score = 0;
  PieceType type = PieceType::kNormal;
};

// The content of a tokenizer.model: a SentencePiece BPE vocabulary.
struct SentencePieceModel {
  std::vector<ScoredPiece> pieces;  // the index is the id
  std::vector<int32_t> bytes;       // the piece id for each byte; empty without byte fallback
  int32_t unk_id = 0;
  bool add_dummy_prefix = true;
  bool fuses_unknown = true;  // adjacent unknown characters become one token
  std::string unk_surface = " \xE2\x81\x87 ";
};

// Parses a tokenizer.model. Throws std::invalid_argument for damaged files and for features that
// `SentencePieceBpe` does not reproduce exactly: algorithms other than BPE, character
// normalisation, extra spaces removed, spaces as suffixes, user-defined and unused pieces, and a
// vocabulary without U+2581.
SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& where);

}  // namespace fastsft
