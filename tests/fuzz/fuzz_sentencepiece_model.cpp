// Fuzzes tokenizer.model files, and texts encoded with the resulting tokenizer. A file must be
// rejected with std::invalid_argument, or the tokenizer must meet the contract in
// tokenizer/tokenizer.h.
#include <stdexcept>
#include <string_view>

#include "core/utf8.h"
#include "tokenizer/sentencepiece/llama_tokenizer.h"
#include "tokenizer_promises.h"

namespace {

using fastsft::SpecialText;

fastsft::LlamaSettings make_settings(bool legacy) {
  fastsft::LlamaSettings settings;
  settings.legacy = legacy;
  settings.add_bos = false;
  fastsft::AddedToken stop;
  stop.id = 1;
  stop.text = "</s>";
  settings.added = {stop};
  settings.special_ids = {1};
  return settings;
}

void run(std::string_view input, bool legacy) {
  auto model = fastsft::parse_sentencepiece_model(input, "tokenizer.model");
  const fastsft::LlamaTokenizer tokenizer(std::move(model), make_settings(legacy));
  for (const SpecialText specials : {SpecialText::kFind, SpecialText::kPlain}) {
    const std::string_view text =
        "Hello \u2581 aaaaaaaaaaaaaaaaaaaa</s>  caf\u00E9 \u4E2D\u6587 </s>\n";
    fastsft::fuzz::check_promises(tokenizer, text, specials);
    if (fastsft::find_invalid_utf8(input) == input.npos) {
      fastsft::fuzz::check_promises(tokenizer, input, specials);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  for (const bool legacy : {true, false}) {
    try {
      run(input, legacy);
    } catch (const std::invalid_argument&) {
    }
  }
  return 0;
}
