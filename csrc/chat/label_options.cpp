#include "chat/label_options.h"

#include "chat/role_names.h"
#include "chat/template.h"
#include "core/error.h"

namespace fastsft {
namespace {

template <typename Word>
Word parse_word(const char* option, const std::string& word,
                const std::map<std::string, Word>& words) {
  const auto found = words.find(word);
  if (found != words.end()) return found->second;
  std::string known;
  for (const auto& [name, value] : words) known += (known.empty() ? "" : ", ") + name;
  throw_invalid("--", option, ": expected one of ", known, ", got \"", word, "\"");
}

}  // namespace

MaskPolicy parse_mask_policy(const std::string& word) {
  return parse_word<MaskPolicy>(
      "mask_policy", word, {{"fastchat", MaskPolicy::kFastchat}, {"spans", MaskPolicy::kSpans}});
}

TrainTurns parse_train_turns(const std::string& word) {
  return parse_word<TrainTurns>("train_turns", word,
                                {{"all", TrainTurns::kAll},
                                 {"each", TrainTurns::kEach},
                                 {"each_with_thoughts", TrainTurns::kEachWithThoughts}});
}

Learn parse_learn(const std::string& word) {
  return parse_word<Learn>("learn", word,
                           {{"all", Learn::kAll},
                            {"last", Learn::kLast},
                            {"after_last_user", Learn::kAfterLastUser},
                            {"marked", Learn::kMarked}});
}

LearnThoughts parse_learn_thoughts(const std::string& word) {
  return parse_word<LearnThoughts>("learn_thoughts", word,
                                   {{"all", LearnThoughts::kAll},
                                    {"filled", LearnThoughts::kFilled},
                                    {"none", LearnThoughts::kNone}});
}

OnBadSample parse_on_bad_sample(const std::string& word) {
  return parse_word<OnBadSample>("on_bad_sample", word,
                                 {{"error", OnBadSample::kError},
                                  {"skip", OnBadSample::kSkip},
                                  {"repair", OnBadSample::kRepair}});
}

Overlong parse_overlong(const std::string& word) {
  return parse_word<Overlong>("overlong", word,
                              {{"truncate", Overlong::kTruncate}, {"split", Overlong::kSplit}});
}

BoundaryTokens parse_boundary_tokens(const std::string& word) {
  return parse_word<BoundaryTokens>(
      "boundary_tokens", word,
      {{"merge", BoundaryTokens::kMerge}, {"split", BoundaryTokens::kSplit}});
}

const char* name_of(BoundaryTokens boundary) {
  return boundary == BoundaryTokens::kMerge ? "merge" : "split";
}

const char* name_of(MaskPolicy policy) {
  return policy == MaskPolicy::kFastchat ? "fastchat" : "spans";
}

const char* name_of(TrainTurns turns) {
  switch (turns) {
    case TrainTurns::kAll:
      return "all";
    case TrainTurns::kEach:
      return "each";
    case TrainTurns::kEachWithThoughts:
      return "each_with_thoughts";
  }
  return "none";
}

const char* name_of(Learn learn) {
  switch (learn) {
    case Learn::kAll:
      return "all";
    case Learn::kLast:
      return "last";
    case Learn::kAfterLastUser:
      return "after_last_user";
    case Learn::kMarked:
      return "marked";
  }
  return "none";
}

const char* name_of(LearnThoughts thoughts) {
  switch (thoughts) {
    case LearnThoughts::kAll:
      return "all";
    case LearnThoughts::kFilled:
      return "filled";
    case LearnThoughts::kNone:
      break;
  }
  return "none";
}

void LabelOptions::check() const {
  require(max_length > 0 && max_length < INT32_MAX / 2, "model_max_length: expected 1 to ",
          INT32_MAX / 2 - 1, ", got ", max_length);
  RoleNames(role_aliases, role_map);
  const bool counts_from_end = learn == Learn::kLast || learn == Learn::kAfterLastUser;
  require(
      !counts_from_end || overlong == Overlong::kTruncate, "--learn ", name_of(learn),
      " and --overlong split: only the last piece of a conversation would have something to learn; "
      "leave one of them out, or raise --model_max_length");
  if (mask_policy == MaskPolicy::kSpans) return;
  require(find_chat_template(chat_template).has_fastchat_labels,
          "FastChat's label arithmetic is not defined for the template ", chat_template,
          "; expected vicuna_v1.1, or --mask_policy spans");
  require(pad_id >= 0,
          "the tokenizer has no unk token to pad with, as FastChat's labels need; "
          "--mask_policy spans needs none");
  require(on_bad_sample != OnBadSample::kRepair,
          "--on_bad_sample repair needs --mask_policy spans");
  require(boundary_tokens == BoundaryTokens::kMerge,
          "--boundary_tokens split needs --mask_policy spans");
  require(train_turns == TrainTurns::kAll, "--train_turns ", name_of(train_turns),
          " needs --mask_policy spans");
  require(learn == Learn::kAll, "--learn ", name_of(learn), " needs --mask_policy spans");
  require(learn_tool_calls, "--learn_tool_calls False needs --mask_policy spans");
  require(learn_thoughts == LearnThoughts::kAll, "--learn_thoughts ", name_of(learn_thoughts),
          " needs --mask_policy spans");
  require(default_system.empty(), "--default_system needs --mask_policy spans");
}

std::string LabelOptions::fingerprint() const {
  const bool is_named = chat_template != kModelTemplate;
  std::string text = concat(
      "policy ", name_of(mask_policy), " template ", chat_template, " ", chat_template_digest,
      " length ", max_length, " pad ", mask_policy == MaskPolicy::kFastchat ? pad_id : -1,
      " turns ", static_cast<int>(train_turns), " aliases ", role_aliases, " bad ",
      static_cast<int>(on_bad_sample), " overlong ", static_cast<int>(overlong), " ",
      is_named ? fastsft::fingerprint(find_chat_template(chat_template)) : "");
  if (boundary_tokens == BoundaryTokens::kSplit) text += " boundary split";
  text += concat(" learn ", name_of(learn), " calls ", learn_tool_calls, " thoughts ",
                 name_of(learn_thoughts));
  if (!default_system.empty()) {
    text += concat(" system ", default_system.size(), ":", default_system);
  }
  for (const std::string& field : template_fields) text += concat(" writes ", field);
  for (const auto& [name, role] : role_map) {
    text += concat(" role ", name.size(), ":", name, "=", role);
  }
  return text;
}

}  // namespace fastsft
