#include "tokenizer/bpe/merge_table.h"

#include <algorithm>
#include <functional>

#include "core/error.h"
#include "core/utf8.h"
#include "tokenizer/bpe/character_table.h"
#include "tokenizer/bpe/text_index.h"

namespace fastsft {
namespace {

constexpr char32_t kSpaceMarkCode = 0x2581;

}  // namespace

MergeTable::MergeTable(const MergeRules& rules)
    : num_pieces_(rules.num_pieces), pairs_(rules.rules.size()) {
  int32_t num_symbols = num_pieces_;
  for (const auto& [character, symbol] : rules.characters) {
    num_symbols = std::max(num_symbols, symbol + 1);
    if (character != U' ') characters_.add(character, symbol);
  }
  characters_.add(U' ', characters_.find(kSpaceMarkCode));
  require(num_symbols < PairTable::kMaxIds, "a vocabulary of ", num_symbols,
          " pieces and characters; at most ", PairTable::kMaxIds, " are possible");
  for (const auto& [left, right, rank, symbol] : rules.rules) {
    require(static_cast<uint32_t>(rank) < PairTable::kNone, "a vocabulary of more than ",
            PairTable::kNone, " merges");
    pairs_.add(left, right, {static_cast<uint32_t>(rank), symbol});
  }
  // common characters have the ids after U+2581's
  pairs_.make_square(std::max(characters_.find(kSpaceMarkCode), 0));
  is_followed_.resize(num_symbols);
  is_preceded_.resize(num_symbols);
  for (const std::string_view text : rules.merged) add_neighbours(text);
  neighbours_.make_square(std::max(characters_.find(kSpaceMarkCode), 0));
}

void MergeTable::add_neighbours(std::string_view text) {
  char32_t before = utf8_code_point(text, 0);
  bool only_marks = before == kSpaceMarkCode;
  for (size_t at = utf8_char_size(text[0]); at < text.size(); at += utf8_char_size(text[at])) {
    const char32_t character = utf8_code_point(text, at);
    const int32_t left = characters_.find(before);
    const int32_t right = characters_.find(character);
    before = character;
    cuts_before_spaces_ &= only_marks || character != kSpaceMarkCode;
    only_marks &= character == kSpaceMarkCode;
    if ((left | right) < 0) continue;
    is_followed_[left] = 1;
    is_preceded_[right] = 1;
    neighbours_.add(left, right, {0, 0});
  }
}

namespace {

// Ranks the pieces by score. Equal scores get equal ranks, because merges depend on score and
// position only.
std::vector<int32_t> rank_pieces(const std::vector<ScoredPiece>& pieces) {
  std::vector<float> scores;
  for (const ScoredPiece& piece : pieces) scores.push_back(piece.score);
  std::sort(scores.begin(), scores.end(), std::greater<>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  std::vector<int32_t> ranks;
  for (const ScoredPiece& piece : pieces) {
    const auto at = std::lower_bound(scores.begin(), scores.end(), piece.score, std::greater<>());
    ranks.push_back(static_cast<int32_t>(at - scores.begin()));
  }
  return ranks;
}

bool is_character(std::string_view text) { return text.size() == utf8_char_size(text[0]); }

class Derivation {
 public:
  explicit Derivation(const SentencePieceModel& model)
      : pieces_(model.pieces), ids_(model.pieces.size()) {
    rules_.num_pieces = static_cast<int32_t>(pieces_.size());
    for (int32_t id = 0; id < rules_.num_pieces; ++id) {
      const ScoredPiece& piece = pieces_[id];
      if (piece.type != PieceType::kNormal) continue;
      ids_.add(piece.text, id);
      if (is_character(piece.text)) number(utf8_code_point(piece.text, 0), id);
    }
    // the next symbol for a character that occurs only inside pieces
    int32_t next = rules_.num_pieces;
    for (const ScoredPiece& piece : pieces_) {
      if (piece.type != PieceType::kNormal || is_character(piece.text)) continue;
      rules_.merged.push_back(piece.text);
      for (size_t at = 0; at < piece.text.size(); at += utf8_char_size(piece.text[at])) {
        const size_t known = rules_.characters.size();
        number(utf8_code_point(piece.text, at), next);
        next += static_cast<int32_t>(rules_.characters.size() - known);
      }
    }
  }

  MergeRules run() {
    const std::vector<int32_t> ranks = rank_pieces(pieces_);
    for (int32_t id = 0; id < rules_.num_pieces; ++id) {
      const std::string_view text = pieces_[id].text;
      if (pieces_[id].type != PieceType::kNormal || is_character(text)) continue;
      for (size_t at = utf8_char_size(text[0]); at < text.size(); at += utf8_char_size(text[at])) {
        const int32_t left = symbol_of(text.substr(0, at));
        if (left == CharacterTable::kMissing) continue;
        const int32_t right = symbol_of(text.substr(at));
        if (right != CharacterTable::kMissing) rules_.rules.push_back({left, right, ranks[id], id});
      }
    }
    return std::move(rules_);
  }

 private:
  void number(char32_t character, int32_t symbol) {
    if (table_.add(character, symbol)) rules_.characters.emplace_back(character, symbol);
  }

  int32_t symbol_of(std::string_view text) const {
    if (is_character(text)) return table_.find(utf8_code_point(text, 0));
    static_assert(TextIndex::kMissing == CharacterTable::kMissing);
    return ids_.find(text);
  }

  const std::vector<ScoredPiece>& pieces_;
  MergeRules rules_;
  CharacterTable table_;
  TextIndex ids_;
};

}  // namespace

MergeRules derive_merge_rules(const SentencePieceModel& model) { return Derivation(model).run(); }

}  // namespace fastsft
