#include "core/error.h"
#include "core/utf8.h"
#include "tokenizer/sentencepiece/llama_tokenizer.h"

namespace fastsft {
namespace {

// Bytes as text: each byte that is not part of a well-formed character becomes U+FFFD.
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

// SentencePieceProcessor.Decode over one run of pieces between special tokens.
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

// LlamaTokenizer.convert_tokens_to_string.
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
    token_text(id);  // throws for an id that is none
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
