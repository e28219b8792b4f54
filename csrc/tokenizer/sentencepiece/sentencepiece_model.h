#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fastsft {

// U+2581, which SentencePiece writes for a space.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

// Appends a piece as a text has it: a space for U+2581.
void append_with_spaces(std::string_view piece, std::string& text);

// The value of "<0x41>", nothing for another text.
std::optional<uint8_t> parse_byte_piece(std::string_view text);

enum class PieceType { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

struct ScoredPiece {
  std::string text;
  float score = 0;
  PieceType type = PieceType::kNormal;
};

// A SentencePiece BPE vocabulary as its tokenizer.model holds it.
struct SentencePieceModel {
  std::vector<ScoredPiece> pieces;  // the index is the id
  std::vector<int32_t> bytes;       // id of each byte's piece; empty without byte fallback
  int32_t unk_id = 0;
  bool add_dummy_prefix = true;
  bool fuses_unknown = true;  // a run of unknown characters is one token
  std::string unk_surface = " \xE2\x81\x87 ";
};

// Parses a tokenizer.model. Refuses, with the reason, what `SentencePieceBpe` does not reproduce
// exactly: another algorithm than BPE, character normalisation, removal of extra spaces, spaces as
// suffixes, user-defined and unused pieces, a vocabulary without U+2581; and damaged files.
SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& where);

}  // namespace fastsft
