#pragma once

#include <memory>
#include <string>

#include "tokenizer/files/tokenizer_json.h"
#include "tokenizer/vocabulary_tokenizer.h"

namespace fastsft {

// The native tokenizer of a tokenizer.json; throws NotNative when there is none.
std::shared_ptr<Tokenizer> make_json_tokenizer(const TokenizerJson& json,
                                               const JsonTokenizerSettings& settings);

}  // namespace fastsft
