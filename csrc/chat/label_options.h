#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fastsft {

enum class MaskPolicy { kFastchat, kSpans };
// Which replies are learned, unless a train mark excludes them. kAfterLastUser: the replies after
// the last user message. kMarked: the replies that a train mark includes.
enum class Learn { kAll, kLast, kAfterLastUser, kMarked };
// Which thoughts of a learned reply are learned: all, those with text, or none. Thoughts are what
// <think> and </think> enclose at a reply's beginning, with the white space after them.
enum class LearnThoughts { kAll, kFilled, kNone };
// Which replies share a row. kAll: all replies of a record. kEach: every reply has its own row,
// which ends with the reply, for templates that write earlier replies differently once more
// messages follow. kEachWithThoughts: like kEach if a reply before the last has thoughts, otherwise
// like kAll, for templates that rewrite only such replies.
enum class TrainTurns { kAll, kEach, kEachWithThoughts };
enum class OnBadSample { kError, kSkip, kRepair };
// How conversations longer than a row are treated.
enum class Overlong { kTruncate, kSplit };
// How a token is treated that contains a prompt's end and the beginning of its reply. kMerge: the
// token is learned as it is. kSplit: the texts before and after the boundary are encoded
// separately, as at inference.
enum class BoundaryTokens { kMerge, kSplit };

// Settings that say how records become labelled examples (docs/spec/fastchat_labels.md, section 4).
struct LabelOptions {
  MaskPolicy mask_policy = MaskPolicy::kFastchat;
  std::string chat_template = "vicuna_v1.1";  // a name, an alias, or "model"
  std::string chat_template_digest;  // the digest if the model's own template is used, else ""
  std::string stop_token{};          // the stop token in the model's own template, for reports
  std::string call_stop_token{};     // stop token after tool calls if it is another token
  std::string template_date{};       // date that the template asked for, or ""; for reports
  // Fields that the model's own template writes next to roles and texts (template_fields.h).
  std::vector<std::string> template_fields{};
  int64_t max_length = 0;  // most token ids in a row
  int32_t pad_id = -1;     // id that fills up short rows
  int num_threads = 0;     // 0: the machine's core count, at most eight
  TrainTurns train_turns = TrainTurns::kAll;
  Learn learn = Learn::kAll;
  bool learn_tool_calls = true;  // false: replies that call tools are not learned
  LearnThoughts learn_thoughts = LearnThoughts::kAll;
  std::string default_system{};  // system text of records without one; "": the template's default
  std::map<std::string, std::string> role_map;  // from a name in the data to a role
  bool role_aliases = false;                    // always true for the spans policy
  OnBadSample on_bad_sample = OnBadSample::kError;
  Overlong overlong = Overlong::kTruncate;
  BoundaryTokens boundary_tokens = BoundaryTokens::kMerge;

  // Throws std::invalid_argument if the options contradict each other.
  void check() const;
  // Returns all options that affect labels (all but the thread count) as a text, for cache names.
  std::string fingerprint() const;
};

// Parses an option's value from the command line. Throws std::invalid_argument if the word is not
// known.
MaskPolicy parse_mask_policy(const std::string& word);
TrainTurns parse_train_turns(const std::string& word);
Learn parse_learn(const std::string& word);
LearnThoughts parse_learn_thoughts(const std::string& word);
OnBadSample parse_on_bad_sample(const std::string& word);
Overlong parse_overlong(const std::string& word);
BoundaryTokens parse_boundary_tokens(const std::string& word);
const char* name_of(MaskPolicy policy);
const char* name_of(TrainTurns turns);
const char* name_of(Learn learn);
const char* name_of(LearnThoughts thoughts);
const char* name_of(BoundaryTokens boundary);

// The value of --template for the model's own Jinja template.
inline constexpr const char* kModelTemplate = "model";

}  // namespace fastsft
