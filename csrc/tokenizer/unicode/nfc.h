#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fastsft {

// A text in NFC, with a mapping to positions in the original text.
class NormalizedText {
 public:
  std::string text;

  // Returns the position in the original text for a position in `text`. In a stretch that
  // normalization changed, byte i maps to byte i in the original stretch, or to its end if the
  // original is shorter.
  size_t original(size_t at) const;

 private:
  friend bool normalize_nfc(std::string_view original, NormalizedText& result);

  // A changed stretch's bounds. Between stretches the texts are equal.
  struct Change {
    size_t begin;
    size_t end;
    size_t original_begin;
    size_t original_end;
  };
  std::vector<Change> changes_;
};

// Converts to Unicode's normalization form C as `tokenizers` does. Returns false and leaves
// `result` unchanged if `original` (valid UTF-8) is already in NFC.
bool normalize_nfc(std::string_view original, NormalizedText& result);

}  // namespace fastsft
