#include "tokenizer/json_tokenizer.h"

namespace fastsft {

std::shared_ptr<Tokenizer> make_json_tokenizer(const TokenizerJson& json,
                                               const JsonTokenizerSettings& settings) {
  return std::make_shared<ByteLevelTokenizer>(json, settings);
}

}  // namespace fastsft
