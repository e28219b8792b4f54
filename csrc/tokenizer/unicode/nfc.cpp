#include "tokenizer/unicode/nfc.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <unordered_map>

#include "core/utf8.h"
#include "tokenizer/unicode/unicode.h"
#include "tokenizer/unicode/unicode_tables.h"

namespace fastsft {
namespace {

constexpr uint32_t kHangul = 0xAC00, kLeadConsonant = 0x1100, kVowel = 0x1161, kTail = 0x11A7;
constexpr uint32_t kNumLeads = 19, kNumVowels = 21, kNumTails = 28;
constexpr uint32_t kNumHangul = kNumLeads * kNumVowels * kNumTails;

// A character from U+0300 on begins with at least this byte. A text without such characters is in
// NFC.
constexpr unsigned char kFirstLead = 0xCC;

class NfcTables {
 public:
  static const NfcTables& get() {
    static const NfcTables tables;
    return tables;
  }

  uint8_t combining_class(uint32_t code) const { return combining_[code]; }
  // True if normalization can change the character or its neighbours.
  bool is_active(uint32_t code) const { return active_[code] != 0; }

  void decompose(uint32_t code, std::vector<uint32_t>& parts) const {
    if (code - kHangul < kNumHangul) {
      const uint32_t index = code - kHangul;
      parts.push_back(kLeadConsonant + index / (kNumVowels * kNumTails));
      parts.push_back(kVowel + index % (kNumVowels * kNumTails) / kNumTails);
      if (index % kNumTails != 0) parts.push_back(kTail + index % kNumTails);
      return;
    }
    const auto found = steps_.find(code);
    if (found == steps_.end()) return parts.push_back(code);
    decompose(found->second->first, parts);
    if (found->second->second != 0) decompose(found->second->second, parts);
  }

  // Returns the composed character, or 0 if the two do not compose.
  uint32_t compose(uint32_t first, uint32_t second) const {
    if (first - kLeadConsonant < kNumLeads && second - kVowel < kNumVowels) {
      return kHangul + ((first - kLeadConsonant) * kNumVowels + second - kVowel) * kNumTails;
    }
    const bool has_no_tail = first - kHangul < kNumHangul && (first - kHangul) % kNumTails == 0;
    if (has_no_tail && second > kTail && second - kTail < kNumTails) return first + second - kTail;
    const auto found = pairs_.find(uint64_t{first} << 32 | second);
    return found == pairs_.end() ? 0 : found->second;
  }

 private:
  NfcTables() : combining_(combining()), active_(active()) {
    for (const Decomposition& step : kDecompositions) steps_[step.code] = &step;
    for (const Decomposition& pair : kCompositions) {
      pairs_[uint64_t{pair.first} << 32 | pair.second] = pair.code;
    }
  }

  static std::vector<CodePointTable::Range> combining() {
    std::vector<CodePointTable::Range> ranges;
    for (const auto& range : kCombiningRanges) {
      ranges.push_back({range.first, range.last, range.combining_class});
    }
    return ranges;
  }

  static std::vector<CodePointTable::Range> active() {
    std::vector<CodePointTable::Range> ranges;
    const auto add = [&](uint32_t first, uint32_t last, uint8_t value) {
      ranges.push_back({first, last, value});
    };
    for (const Decomposition& step : kDecompositions) add(step.code, step.code, 1);
    for (const Decomposition& pair : kCompositions) add(pair.code, pair.code, 0);
    for (const Decomposition& pair : kCompositions) add(pair.second, pair.second, 1);
    for (const auto& range : kCombiningRanges) add(range.first, range.last, 1);
    add(kVowel, kVowel + kNumVowels - 1, 1);
    add(kTail + 1, kTail + kNumTails - 1, 1);
    return ranges;
  }

  CodePointTable combining_;
  CodePointTable active_;
  std::unordered_map<uint32_t, const Decomposition*> steps_;
  std::unordered_map<uint64_t, uint32_t> pairs_;
};

// Returns the position of the next character that may be active: its first byte is at least
// kFirstLead.
size_t find_high_lead(std::string_view text, size_t at) {
  while (at < text.size()) {
    uint64_t block;
    if (text.size() - at >= 8) {
      std::memcpy(&block, text.data() + at, 8);
      if ((block & 0x8080808080808080ull) == 0) {
        at += 8;
        continue;
      }
    }
    if (static_cast<unsigned char>(text[at]) >= kFirstLead) return at;
    ++at;
  }
  return at;
}

// Returns the range around the first active character from `from` on: the character before it, and
// all active characters directly after it. Both ends are the text's end if there is no active
// character.
std::pair<size_t, size_t> find_stretch(std::string_view text, size_t from) {
  const NfcTables& tables = NfcTables::get();
  for (size_t at = find_high_lead(text, from); at < text.size();) {
    DecodedChar c = decode_char(text, at);
    if (!tables.is_active(c.code)) {
      at = find_high_lead(text, at + c.size);
      continue;
    }
    const size_t begin = at > from ? char_begin_before(text, at) : at;
    while (at < text.size() && tables.is_active((c = decode_char(text, at)).code)) at += c.size;
    return {begin, at};
  }
  return {text.size(), text.size()};
}

void sort_marks(std::vector<uint32_t>& parts) {
  const NfcTables& tables = NfcTables::get();
  const auto is_mark = [&](uint32_t code) { return tables.combining_class(code) != 0; };
  for (auto begin = parts.begin(); begin != parts.end();) {
    begin = std::find_if(begin, parts.end(), is_mark);
    const auto end = std::find_if_not(begin, parts.end(), is_mark);
    std::stable_sort(begin, end, [&](uint32_t a, uint32_t b) {
      return tables.combining_class(a) < tables.combining_class(b);
    });
    begin = end;
  }
}

void compose(std::vector<uint32_t>& parts) {
  const NfcTables& tables = NfcTables::get();
  size_t size = 0;
  size_t starter = SIZE_MAX;
  for (const uint32_t code : parts) {
    const uint8_t combining = tables.combining_class(code);
    const bool touches = starter + 1 == size;
    const bool is_blocked =
        starter == SIZE_MAX || (!touches && tables.combining_class(parts[size - 1]) >= combining);
    const uint32_t joined = is_blocked ? 0 : tables.compose(parts[starter], code);
    if (joined != 0) {
      parts[starter] = joined;
      continue;
    }
    if (combining == 0) starter = size;
    parts[size++] = code;
  }
  parts.resize(size);
}

}  // namespace

size_t NormalizedText::original(size_t at) const {
  const auto next = std::upper_bound(changes_.begin(), changes_.end(), at,
                                     [](size_t at, const Change& c) { return at < c.begin; });
  if (next == changes_.begin()) return at;
  const Change& change = *std::prev(next);
  if (at >= change.end) return at - change.end + change.original_end;
  return std::min(change.original_begin + (at - change.begin), change.original_end);
}

bool normalize_nfc(std::string_view original, NormalizedText& result) {
  auto [begin, end] = find_stretch(original, 0);
  if (begin == original.size()) return false;
  result.text.clear();
  result.changes_.clear();
  std::vector<uint32_t> parts;
  size_t done = 0;
  for (; begin < original.size(); std::tie(begin, end) = find_stretch(original, end)) {
    const std::string_view stretch = original.substr(begin, end - begin);
    parts.clear();
    for (size_t at = 0; at < stretch.size();) {
      const DecodedChar c = decode_char(stretch, at);
      NfcTables::get().decompose(c.code, parts);
      at += c.size;
    }
    sort_marks(parts);
    compose(parts);
    result.text += original.substr(done, begin - done);
    const size_t at = result.text.size();
    for (const uint32_t code : parts) append_utf8(code, result.text);
    if (std::string_view(result.text).substr(at) != stretch) {
      result.changes_.push_back({at, result.text.size(), begin, end});
    }
    done = end;
  }
  if (result.changes_.empty()) return false;
  result.text += original.substr(done);
  return true;
}

}  // namespace fastsft
