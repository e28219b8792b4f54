#pragma once

#include <initializer_list>

#include "tokenizer/files/tokenizer_json.h"

namespace fastsft {

// Throws NotNative for another model than BPE, for a setting of it that nobody here knows, and for
// one of `unsupported` that is not null, empty, false or zero.
void check_bpe_settings(const TokenizerJson& json, std::initializer_list<const char*> unsupported);

}  // namespace fastsft
