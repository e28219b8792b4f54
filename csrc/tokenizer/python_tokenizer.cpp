#include "tokenizer/python_tokenizer.h"

#include "core/error.h"

namespace fastsft {
namespace {

[[noreturn]] void refuse(const char* what) {
  throw_invalid("a tokenizer that is only called for ids cannot ", what, "; ask the object itself");
}

}  // namespace

// Encodes an empty text to find out which tokens the tokenizer adds to every text.
PythonTokenizer::PythonTokenizer(Encode encode, std::function<bool()> legacy, NamedIds named)
    : encode_(std::move(encode)), legacy_(std::move(legacy)), named_(named) {
  using Ids = std::vector<int32_t>;
  const Ids added = encode_("");
  const bool both = added == Ids{named_.bos, named_.eos};
  adds_bos_ = both || added == Ids{named_.bos};
  adds_eos_ = both || (!adds_bos_ && added == Ids{named_.eos});
}

void PythonTokenizer::encode(std::string_view text, SpecialText specials,
                             std::vector<Token>& tokens) const {
  if (specials != SpecialText::kFind) refuse("encode special tokens as plain text");
  const std::vector<int32_t> ids = encode_(std::string(text));
  for (size_t i = adds_bos_; i + adds_eos_ < ids.size(); ++i) tokens.push_back({ids[i], 0, 0});
}

std::string PythonTokenizer::decode(std::span<const int32_t>, bool) const { refuse("decode"); }
int32_t PythonTokenizer::vocab_size() const { refuse("say how many ids it has"); }
std::string PythonTokenizer::token_text(int32_t) const { refuse("name a token"); }
int32_t PythonTokenizer::find_token(std::string_view) const { refuse("find a token"); }

}  // namespace fastsft
