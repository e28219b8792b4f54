#include "chat/mark_names.h"

#include <algorithm>
#include <cctype>
#include <span>

namespace fastsft {
namespace {

using Words = std::span<const std::string_view>;

// Words about learning, and words by which trainers hide a text from learning.
constexpr std::string_view kLearning[] = {
    "train",     "trains",   "training",  "trainable",  "trained",    "learn",  "learns",
    "learnable", "learned",  "learnt",    "loss",       "losses",     "weight", "weights",
    "weighting", "backprop", "supervise", "supervised", "supervision"};
constexpr std::string_view kMasks[] = {"mask", "masks", "masking"};
constexpr std::string_view kHidden[] = {"masked", "untrained", "untrainable", "unlearned",
                                        "unsupervised"};
constexpr std::string_view kNot[] = {
    "no",   "not",     "dont",     "never",    "without", "un",    "non",
    "from", "disable", "disabled", "exempt",   "mute",    "muted", "ignore",
    "skip", "skipped", "exclude",  "excluded", "ignored", "omit",  "omitted"};
constexpr std::string_view kSkips[] = {"ignore",  "ignored",  "skip", "skipped",
                                       "exclude", "excluded", "omit", "omitted"};
// Filler words: a name with these words means the same as without them.
constexpr std::string_view kPlain[] = {
    "is",          "are",          "should",   "shall",     "to",        "do",         "does",
    "on",          "in",           "of",       "for",       "the",       "this",       "that",
    "use",         "need",         "needs",    "has",       "have",      "with",       "be",
    "can",         "will",         "compute",  "computed",  "calculate", "calculated", "calc",
    "cal",         "count",        "counted",  "counts",    "scale",     "factor",     "coef",
    "coefficient", "value",        "flag",     "turn",      "message",   "msg",        "reply",
    "response",    "answer",       "output",   "assistant", "sample",    "example",    "row",
    "record",      "conversation", "dialogue", "step",      "token",     "per",        "include",
    "included",    "it",           "sft",      "finetune",  "keep",      "enable",     "enabled",
    "as"};
// Words that make a name a statistic, such as "epoch" or "cost".
constexpr std::string_view kFigures[] = {
    "rate",    "split", "date",   "time",  "type", "name", "id",      "file", "path",
    "version", "epoch", "epochs", "decay", "eval", "val",  "test",    "unit", "validation",
    "kg",      "lb",    "cutoff", "hours", "cost", "seed", "language"};
// Words for things that are counted: the name is a statistic if its value is a number.
constexpr std::string_view kCounted[] = {"tokens", "steps"};

bool is_in(Words words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

bool is_known(std::string_view word) {
  for (const Words words : {Words(kLearning), Words(kMasks), Words(kHidden), Words(kNot),
                            Words(kPlain), Words(kFigures), Words(kCounted)}) {
    if (is_in(words, word)) return true;
  }
  return false;
}

// Splits a word such as "lossmask" into known words. Returns false and leaves `words` unchanged if
// that is not possible.
bool spell(std::string_view text, std::vector<std::string>& words) {
  constexpr size_t kLongest = 32;
  if (text.empty()) return true;
  if (text.size() > kLongest) return false;
  for (size_t size = text.size(); size > 0; --size) {
    if (!is_known(text.substr(0, size))) continue;
    words.emplace_back(text.substr(0, size));
    if (spell(text.substr(size), words)) return true;
    words.pop_back();
  }
  return false;
}

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// Splits a name at characters that are not letters and, with `at_capitals`, before capitals.
std::vector<std::string> split_name(std::string_view name, bool at_capitals) {
  std::vector<std::string> parts(1);
  bool was_lower = false;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_letter = std::isalpha(byte) || byte >= 0x80;
    const bool begins_word = at_capitals && was_lower && std::isupper(byte);
    if ((!is_letter && c != '\'') || begins_word) parts.emplace_back();
    if (is_letter) parts.back() += c;
    was_lower = std::islower(byte);
  }
  std::erase(parts, "");
  return parts;
}

// Returns the words of "lossScale", "loss-scale" or "LOSS_SCALE", in lower case.
std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words;
  for (const std::string& part : split_name(name, false)) {
    std::vector<std::string> pieces = split_name(part, true);
    for (std::string& piece : pieces) piece = lower_case(std::move(piece));
    // "trAin" is one word, "notRain" is two words.
    if (std::ranges::none_of(pieces, is_known) && spell(lower_case(part), words)) continue;
    for (std::string& piece : pieces) {
      if (!spell(piece, words)) words.push_back(std::move(piece));
    }
  }
  return words;
}

}  // namespace

MarkName find_mark_name(std::string_view name) {
  const std::vector<std::string> words = words_of(name);
  const auto any = [&](Words wanted) {
    return std::ranges::any_of(words, [&](const std::string& word) { return is_in(wanted, word); });
  };
  const bool is_mixed =
      !std::ranges::all_of(words, [](const std::string& word) { return is_known(word); });
  if (any(kFigures)) return MarkName::kNone;
  const bool learns = any(kLearning), masks = any(kMasks), hides = any(kHidden);
  if (!learns && !masks && !hides) {
    return any(kSkips) && !is_mixed && !any(kCounted) ? MarkName::kSkip : MarkName::kNone;
  }
  if (is_mixed) return MarkName::kMixed;
  if (any(kCounted)) return MarkName::kCounted;
  const bool is_not = any(kNot);
  if (masks || (hides && (is_not || learns))) return MarkName::kUnclear;
  return is_not || hides ? MarkName::kNotLearned : MarkName::kLearned;
}

std::vector<std::string> mark_stems() {
  return {"train", "learn",  "loss", "weight", "backprop", "superv",
          "mask",  "ignore", "skip", "exclu",  "omit"};
}

}  // namespace fastsft
