#include "tokenizer/sentencepiece/sentencepiece_model.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/utf8.h"
#include "tokenizer/bpe/text_index.h"
#include "tokenizer/sentencepiece/protobuf_reader.h"

namespace fastsft {
namespace {

constexpr uint64_t kBpe = 2;
// Four times the largest vocabularies in use. The limits bound the cost if a file is hostile.
constexpr size_t kMaxPieces = size_t{1} << 20;
constexpr size_t kMaxBytes = size_t{1} << 23;  // total bytes in all pieces
// Limit for the sum of squared piece sizes, because every way to cut a piece is tried as a merge.
constexpr size_t kMaxSquares = size_t{1} << 28;

// The settings that decide whether a file is supported, with protobuf's defaults.
struct Settings {
  uint64_t algorithm = 1;
  bool byte_fallback = false;
  bool suffix_spaces = false;
  bool remove_extra_spaces = true;
  bool escape_spaces = true;
  bool has_character_map = false;
  std::string normalizer;
};

ScoredPiece parse_piece(std::string_view bytes, const std::string& where) {
  ScoredPiece piece;
  uint64_t type = 1;
  ProtobufReader reader(bytes, where);
  while (reader.next()) {
    switch (reader.field()) {
      case 1:
        piece.text = reader.read_bytes();
        break;
      case 2:
        piece.score = reader.read_float();
        break;
      case 3:
        type = reader.read_varint();
        break;
      default:
        reader.skip();
    }
  }
  require(!piece.text.empty() && find_invalid_utf8(piece.text) == std::string_view::npos, where,
          ": a piece is empty or not UTF-8");
  require(type >= 1 && type <= 6, where, ": piece \"", piece.text, "\" has unknown type ", type);
  require(!std::isnan(piece.score), where, ": the score of piece \"", piece.text, "\" is NaN");
  piece.type = static_cast<PieceType>(type);
  return piece;
}

void parse_trainer(std::string_view bytes, const std::string& where, Settings& settings,
                   SentencePieceModel& model) {
  ProtobufReader reader(bytes, where);
  while (reader.next()) {
    switch (reader.field()) {
      case 3:
        settings.algorithm = reader.read_varint();
        break;
      case 24:
        settings.suffix_spaces = reader.read_bool();
        break;
      case 35:
        settings.byte_fallback = reader.read_bool();
        break;
      case 44:
        model.unk_surface = reader.read_bytes();
        break;
      default:
        reader.skip();
    }
  }
}

void parse_normalizer(std::string_view bytes, const std::string& where, Settings& settings,
                      SentencePieceModel& model) {
  ProtobufReader reader(bytes, where);
  while (reader.next()) {
    switch (reader.field()) {
      case 1:
        settings.normalizer = reader.read_bytes();
        break;
      case 2:
        settings.has_character_map = !reader.read_bytes().empty();
        break;
      case 3:
        model.add_dummy_prefix = reader.read_bool();
        break;
      case 4:
        settings.remove_extra_spaces = reader.read_bool();
        break;
      case 5:
        settings.escape_spaces = reader.read_bool();
        break;
      default:
        reader.skip();
    }
  }
}

void check_settings(const Settings& settings, const std::string& where) {
  require(settings.algorithm == kBpe, where, ": expected a BPE model (type 2), got type ",
          settings.algorithm, "; Unigram, word and character models are not supported");
  require(!settings.has_character_map, where, ": the model normalises characters (\"",
          settings.normalizer, "\"); only models that leave the text as it is are supported");
  require(!settings.remove_extra_spaces, where,
          ": the model removes extra spaces (remove_extra_whitespaces), which is not supported");
  require(
      settings.escape_spaces && !settings.suffix_spaces, where,
      ": the model writes spaces in another way than U+2581 before words, which is not supported");
}

void index_bytes(SentencePieceModel& model, const std::string& where) {
  model.bytes.assign(256, -1);
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    if (model.pieces[id].type != PieceType::kByte) continue;
    const auto byte = parse_byte_piece(model.pieces[id].text);
    require(byte.has_value(), where, ": piece ", id, " (\"", model.pieces[id].text,
            "\") is of type byte but not of the form <0x41>");
    model.bytes[*byte] = static_cast<int32_t>(id);
  }
  for (int byte = 0; byte < 256; ++byte) {
    require(model.bytes[byte] >= 0, where, ": byte fallback is on but byte ", byte,
            " has no piece");
  }
}

void check_pieces(SentencePieceModel& model, const std::string& where) {
  size_t bytes = 0;
  size_t squares = 0;
  for (const ScoredPiece& piece : model.pieces) {
    bytes += piece.text.size();
    squares += piece.text.size() * piece.text.size();
    require(bytes <= kMaxBytes && squares <= kMaxSquares, where,
            ": the pieces are too long: expected a vocabulary, got a piece of ", piece.text.size(),
            " bytes after ", bytes - piece.text.size(), " others");
  }
  TextIndex seen(model.pieces.size());
  int num_unknown = 0;
  bool has_space_mark = false;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const ScoredPiece& piece = model.pieces[id];
    require(seen.add(piece.text, 0), where, ": piece \"", piece.text, "\" appears twice");
    require(piece.type != PieceType::kUserDefined && piece.type != PieceType::kUnused, where,
            ": piece ", id, " (\"", piece.text,
            "\") is user-defined or unused; such vocabularies are not supported");
    const bool single = piece.text.size() == utf8_char_size(piece.text[0]);
    require(piece.type == PieceType::kNormal || !single, where, ": piece ", id,
            " is a control piece of one character, which is not supported");
    if (piece.type == PieceType::kUnknown) {
      model.unk_id = static_cast<int32_t>(id);
      ++num_unknown;
    }
    has_space_mark |= piece.text == kSpaceMark;
  }
  require(num_unknown == 1, where, ": expected one unknown piece, got ", num_unknown);
  require(has_space_mark, where, ": U+2581, the mark for a space, is not in the vocabulary");
}

}  // namespace

void append_with_spaces(std::string_view piece, std::string& text) {
  for (size_t at = 0; at < piece.size();) {
    const bool is_mark = piece.compare(at, kSpaceMark.size(), kSpaceMark) == 0;
    text += is_mark ? ' ' : piece[at];
    at += is_mark ? kSpaceMark.size() : 1;
  }
}

std::optional<uint8_t> parse_byte_piece(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return std::nullopt;
  const size_t high = kDigits.find(text[3]);
  const size_t low = kDigits.find(text[4]);
  if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
  return static_cast<uint8_t>(high * 16 + low);
}

SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& where) {
  require(!bytes.empty(), where, ": expected a model of SentencePiece, got an empty file",
          "; copy or download it again");
  SentencePieceModel model;
  Settings settings;
  ProtobufReader reader(bytes, where);
  while (reader.next()) {
    switch (reader.field()) {
      case 1:
        require(model.pieces.size() < kMaxPieces, where, ": more than ", kMaxPieces, " pieces");
        model.pieces.push_back(parse_piece(reader.read_bytes(), where));
        break;
      case 2:
        parse_trainer(reader.read_bytes(), where, settings, model);
        break;
      case 3:
        parse_normalizer(reader.read_bytes(), where, settings, model);
        break;
      default:
        reader.skip();
    }
  }
  check_settings(settings, where);
  check_pieces(model, where);
  if (settings.byte_fallback) index_bytes(model, where);
  // SentencePiece refuses such a file, too.
  const auto byte = std::ranges::find(model.pieces, PieceType::kByte, &ScoredPiece::type);
  require(settings.byte_fallback || byte == model.pieces.end(), where,
          ": a piece is of type byte although byte_fallback is off");
  return model;
}

}  // namespace fastsft
