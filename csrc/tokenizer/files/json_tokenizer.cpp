#include "tokenizer/files/json_tokenizer.h"

#include "tokenizer/byte_level/byte_level_tokenizer.h"
#include "tokenizer/sentencepiece/metaspace_tokenizer.h"
#include "tokenizer/sentencepiece/sentencepiece_model.h"

namespace fastsft {
namespace {

bool writes_marks(const Json& section) {
  return section.dump(-1, ' ', false, Json::error_handler_t::replace).find(kSpaceMark) !=
         std::string::npos;
}

}  // namespace

std::shared_ptr<Tokenizer> make_json_tokenizer(const TokenizerJson& json,
                                               const JsonTokenizerSettings& settings) {
  if (writes_marks(json.normalizer) || writes_marks(json.pre_tokenizer)) {
    return std::make_shared<MetaspaceTokenizer>(json, settings);
  }
  return std::make_shared<ByteLevelTokenizer>(json, settings);
}

}  // namespace fastsft
