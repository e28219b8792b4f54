#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fastsft {

// A text in NFC and where its bytes come from.
class NormalizedText {
 public:
  std::string text;

  // The place in the original text of a place in `text`. Inside a stretch that normalization
  // changed, byte i of the result belongs to byte i of the original as far as that reaches.
  size_t original(size_t at) const;

 private:
  friend bool normalize_nfc(std::string_view original, NormalizedText& result);

  // Ends of a changed stretch; texts are equal between stretches.
  struct Change {
    size_t begin;
    size_t end;
    size_t original_begin;
    size_t original_end;
  };
  std::vector<Change> changes_;
};

// Unicode's normalization form C as `tokenizers` computes it. False, and `result` untouched, when
// `original` (valid UTF-8) is in NFC already.
bool normalize_nfc(std::string_view original, NormalizedText& result);

}  // namespace fastsft
