#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fastsft {

enum class MaskPolicy { kFastchat, kSpans };
// Which replies are learned. kEach: all, each in a row of its own that ends with it, for templates
// that write earlier replies otherwise once more messages follow. kEachWithThoughts: kEach for a
// record in which a reply before the last has thoughts, for templates that rewrite only those; else
// kAll.
enum class TrainTurns { kAll, kLast, kEach, kEachWithThoughts };
enum class OnBadSample { kError, kSkip, kRepair };
// What happens to conversations that are longer than a row.
enum class Overlong { kTruncate, kSplit };
// What becomes of a token that has the end of a prompt and the beginning of its reply: learned as
// it is, or two, as inference has them.
enum class BoundaryTokens { kMerge, kSplit };

// How records become labelled examples (docs/spec/fastchat_labels.md, section 4).
struct LabelOptions {
  MaskPolicy mask_policy = MaskPolicy::kFastchat;
  std::string chat_template = "vicuna_v1.1";  // a name or alias, or "model"
  std::string chat_template_digest;           // of the model's own template, "" for a named one
  std::string stop_token{};                   // of a template that is not data, for reports
  std::string call_stop_token{};              // what ends calls of tools, where it is another one
  std::string template_date{};                // that it asked for, "" for none; for reports
  // What such a template writes other than roles and texts (template_fields.h).
  std::vector<std::string> template_fields{};
  int64_t max_length = 0;  // ids of a row at most
  int32_t pad_id = -1;     // what would fill a row up
  int num_threads = 0;     // 0: as many as the machine has cores, eight at most
  TrainTurns train_turns = TrainTurns::kAll;
  std::map<std::string, std::string> role_map;  // name in the data -> role
  bool role_aliases = false;                    // always on in the spans policy
  OnBadSample on_bad_sample = OnBadSample::kError;
  Overlong overlong = Overlong::kTruncate;
  BoundaryTokens boundary_tokens = BoundaryTokens::kMerge;

  // Throws std::invalid_argument when the options contradict each other.
  void check() const;
  // Equal when labels are: everything but the number of threads. For names of caches.
  std::string fingerprint() const;
};

// From the words of the command line; std::invalid_argument for another word.
MaskPolicy parse_mask_policy(const std::string& word);
TrainTurns parse_train_turns(const std::string& word);
OnBadSample parse_on_bad_sample(const std::string& word);
Overlong parse_overlong(const std::string& word);
BoundaryTokens parse_boundary_tokens(const std::string& word);
const char* name_of(MaskPolicy policy);
const char* name_of(TrainTurns turns);
const char* name_of(BoundaryTokens boundary);

// The template's name that means the model's own Jinja template.
inline constexpr const char* kModelTemplate = "model";

}  // namespace fastsft
