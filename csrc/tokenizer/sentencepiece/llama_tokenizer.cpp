#include "tokenizer/sentencepiece/llama_tokenizer.h"

#include <algorithm>
#include <map>

#include "core/error.h"
#include "core/utf8.h"
#include "tokenizer/unicode/unicode.h"

namespace fastsft {
namespace {

constexpr int32_t kMaxId = 1 << 28;

int32_t id_of(const Token& token) { return token.id; }
int32_t id_of(int32_t id) { return id; }

void append(std::vector<Token>& tokens, int32_t id, size_t begin, size_t end) {
  tokens.push_back({id, static_cast<uint32_t>(begin), static_cast<uint32_t>(end)});
}
void append(std::vector<int32_t>& ids, int32_t id, size_t, size_t) { ids.push_back(id); }

// Like strip_right and strip_left. With `marks`, U+2581 counts as a space, too.
std::string_view strip_end(std::string_view text, bool marks) {
  while (marks && (text = strip_right(text)).ends_with(kSpaceMark)) {
    text.remove_suffix(kSpaceMark.size());
  }
  return strip_right(text);
}

std::string_view strip_begin(std::string_view text, bool marks) {
  while (marks && (text = strip_left(text)).starts_with(kSpaceMark)) {
    text.remove_prefix(kSpaceMark.size());
  }
  return strip_left(text);
}

// Returns the span in which special tokens are searched for: the whole text or an empty span.
ByteSpan searched(std::string_view text, SpecialText specials) {
  const size_t size = specials == SpecialText::kFind ? std::min(text.size(), kMaxText) : 0;
  return {0, static_cast<uint32_t>(size)};
}

// Sorts the added tokens by length, so that error messages name the longer text first.
LlamaSettings longest_first(LlamaSettings settings) {
  std::ranges::stable_sort(settings.added, std::greater(),
                           [](const AddedToken& token) { return token.text.size(); });
  return settings;
}

}  // namespace

LlamaTokenizer::LlamaTokenizer(SentencePieceModel model, LlamaSettings settings)
    : bpe_(std::move(model)),
      settings_(longest_first(std::move(settings))),
      special_(pointers_to(settings_.added)) {
  require(settings_.legacy || bpe_.cuts_before_spaces(),
          "a non-legacy tokenizer whose vocabulary joins words (a piece with U+2581 inside) is not "
          "supported");
  require(!settings_.add_bos || settings_.named.bos >= 0,
          "add_bos_token is set without a bos_token");
  require(!settings_.add_eos || settings_.named.eos >= 0,
          "add_eos_token is set without an eos_token");
  const auto num_pieces = static_cast<int32_t>(bpe_.model().pieces.size());
  vocab_size_ = num_pieces;
  for (const AddedToken& token : settings_.added) {
    check_added(token);
    strips_ |= token.strips_left || token.strips_right;
    const auto [at, is_new] = added_texts_.emplace(token.id, token.text);
    require(is_new, "special tokens \"", token.text, "\" and \"", at->second, "\" share the id ",
            token.id);
    vocab_size_ += token.id >= num_pieces;
  }
  check_ids_of_added();
  for (int32_t id = 0; id < num_pieces; ++id) {
    if (bpe_.model().pieces[id].text == kSpaceMark) space_id_ = id;
  }
}

void LlamaTokenizer::check_added(const AddedToken& token) const {
  require(token.id >= 0 && token.id < kMaxId, "special token \"", token.text, "\" has the id ",
          token.id, ", which is not possible");
  require(find_invalid_utf8(token.text) == std::string_view::npos, "special token ", token.id,
          " is not UTF-8");
  const bool has_space =
      token.text.find(kSpaceMark) != std::string::npos || token.text.find(' ') != std::string::npos;
  require(settings_.legacy || !has_space, "special token \"", token.text,
          "\" holds a space or U+2581, which is not supported in non-legacy mode");
}

// Checks that a piece which is also an added token has only one id, because Hugging Face looks up
// ids by text.
void LlamaTokenizer::check_ids_of_added() const {
  std::map<std::string_view, int32_t> added;
  for (const auto& [id, text] : added_texts_) {
    require(added.emplace(text, id).second, "special token \"", text, "\" has two ids");
  }
  const auto& pieces = bpe_.model().pieces;
  for (size_t id = 0; id < pieces.size(); ++id) {
    const auto found = added.find(pieces[id].text);
    require(found == added.end() || found->second == static_cast<int32_t>(id), "special token \"",
            pieces[id].text, "\" is piece ", id,
            " of the vocabulary, but its id is given as another");
  }
}

std::string LlamaTokenizer::token_text(int32_t id) const {
  if (const auto added = added_texts_.find(id); added != added_texts_.end()) return added->second;
  const auto& pieces = bpe_.model().pieces;
  require(id >= 0 && id < static_cast<int32_t>(pieces.size()), "token id ", id,
          " is not in the vocabulary of ", vocab_size_, " tokens");
  return pieces[id].text;
}

int32_t LlamaTokenizer::find_token(std::string_view text) const {
  for (const auto& [id, added] : added_texts_) {
    if (added == text) return id;
  }
  const auto& pieces = bpe_.model().pieces;
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (pieces[id].text == text) return static_cast<int32_t>(id);
  }
  return -1;
}

template <typename Output>
void LlamaTokenizer::encode_part(std::string_view text, size_t begin, size_t end,
                                 SentencePieceBpe::Scratch& scratch,
                                 std::vector<Output>& tokens) const {
  // Non-legacy: the tokenizer itself puts a space before the text. Legacy: SentencePiece puts a
  // space before each part.
  const bool has_own_prefix = begin == 0 && !settings_.legacy && settings_.add_prefix_space;
  if (begin == end && !has_own_prefix) return;
  const bool has_prefix = settings_.legacy ? bpe_.model().add_dummy_prefix : has_own_prefix;
  bpe_.encode(text.substr(begin, end - begin), static_cast<uint32_t>(begin), has_prefix, scratch,
              tokens);
}

// Non-legacy mode: removes a prefix space that stands alone in front of a special token, as
// LlamaTokenizer.tokenize does.
template <typename Output>
void LlamaTokenizer::drop_lone_prefix(size_t first, std::vector<Output>& tokens) const {
  if (settings_.legacy || tokens.size() < first + 2 || id_of(tokens[first]) != space_id_) return;
  if (settings_.special_ids.contains(id_of(tokens[first + 1])))
    tokens.erase(tokens.begin() + first);
}

// Encodes a text with special tokens. A special token is only found if a single span in `control`
// contains all its bytes.
template <typename Output>
void LlamaTokenizer::encode_around(std::string_view text, std::span<const ByteSpan> control,
                                   std::vector<Output>& tokens) const {
  require(text.size() < kMaxText, "a text of ", text.size(), " bytes is too long to tokenize");
  if (text.empty()) return;
  const SentencePieceBpe::Borrowed scratch(bpe_);
  const size_t first = tokens.size();
  size_t at = 0;
  for (const ByteSpan& span : control) {
    while (const auto match =
               special_.find_text(text.substr(0, span.end), std::max<size_t>(at, span.begin))) {
      size_t begin = match->begin;
      size_t end = match->end;
      const bool marks = !settings_.legacy;
      if (match->token->strips_left) {
        begin = at + strip_end(text.substr(at, begin - at), marks).size();
      }
      if (match->token->strips_right) {
        end = text.size() - strip_begin(text.substr(end), marks).size();
      }
      encode_part(text, at, begin, *scratch, tokens);
      append(tokens, match->token->id, begin, end);
      at = end;
    }
  }
  if (at < text.size()) encode_part(text, at, text.size(), *scratch, tokens);
  drop_lone_prefix(first, tokens);
}

void LlamaTokenizer::encode(std::string_view text, SpecialText specials,
                            std::vector<Token>& tokens) const {
  const ByteSpan all = searched(text, specials);
  encode_around(text, {&all, 1}, tokens);
}

void LlamaTokenizer::encode_ids(std::string_view text, SpecialText specials,
                                std::vector<int32_t>& ids) const {
  const ByteSpan all = searched(text, specials);
  encode_around(text, {&all, 1}, ids);
}

bool LlamaTokenizer::encode_segments(std::string_view text, std::span<const ByteSpan> data,
                                     std::vector<Token>& tokens) const {
  encode_around(text, complement(data, text.size()), tokens);
  return true;
}

namespace {

// Appends bytes as text. Each byte that is not part of a valid character becomes U+FFFD.
void append_bytes(std::string& bytes, std::string& text) {
  size_t at = 0;
  while (at < bytes.size()) {
    const size_t bad = find_invalid_utf8(std::string_view(bytes).substr(at));
    text.append(bytes, at, bad);
    if (bad == std::string_view::npos) break;
    text += "\xEF\xBF\xBD";
    at += bad + 1;
  }
  bytes.clear();
}

// Decodes a run of pieces between special tokens, as SentencePieceProcessor.Decode does.
class RunDecoder {
 public:
  RunDecoder(const SentencePieceModel& model, bool strips_space)
      : model_(&model), strips_space_(strips_space) {}

  void add(int32_t id, bool without_mark) {
    const ScoredPiece& piece = model_->pieces[id];
    if (piece.type == PieceType::kByte) {
      bytes_ += static_cast<char>(std::stoi(piece.text.substr(3, 2), nullptr, 16));
      return;
    }
    append_bytes(bytes_, text_);
    if (piece.type == PieceType::kControl) return;
    if (piece.type == PieceType::kUnknown) {
      text_ += model_->unk_surface;
      return;
    }
    std::string_view rest = piece.text;
    if (without_mark) rest.remove_prefix(kSpaceMark.size());
    if (strips_space_ && text_.empty() && rest.starts_with(kSpaceMark)) {
      rest.remove_prefix(kSpaceMark.size());
      strips_space_ = false;
    }
    append_with_spaces(rest, text_);
  }

  std::string finish() {
    append_bytes(bytes_, text_);
    return std::move(text_);
  }

 private:
  const SentencePieceModel* model_;
  bool strips_space_;
  std::string bytes_;
  std::string text_;
};

}  // namespace

// Does the same as LlamaTokenizer.convert_tokens_to_string.
std::string LlamaTokenizer::decode_between_spaced(std::span<const int32_t> ids) const {
  const SentencePieceModel& model = bpe_.model();
  const bool strips_space = settings_.legacy && model.add_dummy_prefix;
  std::string text;
  RunDecoder run(model, strips_space);
  bool after_special = false;
  for (size_t i = 0; i < ids.size(); ++i) {
    const int32_t id = ids[i];
    if (settings_.special_ids.contains(id)) {
      if (!after_special && i != 0 && settings_.legacy) text += ' ';
      text += run.finish();
      text += token_text(id);
      run = RunDecoder(model, strips_space);
      after_special = true;
      continue;
    }
    const bool has_mark = model.pieces.at(id).text.starts_with(kSpaceMark);
    if (after_special && i == 1 && settings_.add_prefix_space && !has_mark) text += ' ';
    run.add(id, has_mark && i == 0 && settings_.add_prefix_space);
    after_special = false;
  }
  return text + run.finish();
}

std::string LlamaTokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string text;
  std::vector<int32_t> run;
  bool is_first = true;
  const auto append = [&](const std::string& part, bool keeps_empty) {
    if (part.empty() && !keeps_empty) return;
    if (!is_first) text += ' ';
    text += part;
    is_first = false;
  };
  for (const int32_t id : ids) {
    token_text(id);  // throws for an unknown id
    if (skip_special_tokens && settings_.special_ids.contains(id)) continue;
    if (!settings_.spaced_ids.contains(id)) {
      run.push_back(id);
      continue;
    }
    if (!run.empty()) append(decode_between_spaced(run), false);
    run.clear();
    append(added_texts_.at(id), true);
  }
  if (!run.empty()) append(decode_between_spaced(run), true);
  return text;
}

}  // namespace fastsft
