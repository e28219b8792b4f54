// Fuzzes tokenizer.json files, and texts encoded with the resulting tokenizer. A file must be
// rejected with std::invalid_argument, or the tokenizer must meet the contract in
// tokenizer/tokenizer.h.
#include <stdexcept>
#include <string>
#include <string_view>

#include "core/utf8.h"
#include "tokenizer/files/json_vocabulary.h"
#include "tokenizer_promises.h"

using fastsft::SpecialText;
using fastsft::fuzz::check_promises;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    const auto json = fastsft::parse_tokenizer_json(input, "tokenizer.json");
    const auto tokenizer = fastsft::make_json_tokenizer(json, {});
    for (const SpecialText specials : {SpecialText::kFind, SpecialText::kPlain}) {
      check_promises(*tokenizer, "He'll say 1234 cafe\u0301s \u4E2D\u6587\n\n  <|x|> y<|x|>\t!",
                     specials);
      if (fastsft::find_invalid_utf8(input) == input.npos)
        check_promises(*tokenizer, input, specials);
    }
  } catch (const std::invalid_argument&) {
  }
  return 0;
}
