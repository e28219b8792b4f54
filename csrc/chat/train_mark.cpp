#include "chat/train_mark.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <optional>
#include <string>

#include "chat/issue.h"
#include "core/error.h"

namespace fastsft {
namespace {

constexpr const char* kExpected =
    "expected true or false, 1 or 0: a text is learned or it is not, and no weight lies between; "
    "write one of them, or leave the field out";
constexpr const char* kRecords =
    "expected true or false, got a list of objects; if they are the records, write that list alone "
    "into the file, or else leave the field out";
constexpr const char* kOpposite =
    "trainers read this field in opposite ways, or mean a part of the text; write \"train\": true "
    "or "
    "\"train\": false in its place, or leave it out";
constexpr const char* kPart =
    "a part of the content is not learned, and a message is learned whole or not at all; write "
    "\"train\" on the message, or leave the field out";

std::string plain_word(std::string_view text) {
  std::string word;
  for (const char c : text) {
    if (!std::isspace(static_cast<unsigned char>(c))) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return word;
}

std::optional<bool> truth_of_number(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0') return std::nullopt;
  if (number == 0) return false;
  return number == 1 ? std::optional<bool>(true) : std::nullopt;
}

std::optional<bool> truth_of_text(std::string_view text) {
  const std::string word = plain_word(text);
  for (const char* yes : {"true", "yes", "on", "y", "t"}) {
    if (word == yes) return true;
  }
  for (const char* no : {"false", "no", "off", "n", "f"}) {
    if (word == no) return false;
  }
  return truth_of_number(word);
}

// A train mark's value.
struct MarkValue {
  ValueKind kind = ValueKind::kNull;
  std::optional<bool> truth;
  bool is_nothing = false;  // null, a blank text, or an empty list or object
  bool is_number = false;   // a number, which may be given as text
  bool is_word = false;     // another text: no number, no truth value and no JSON
  bool is_json = false;     // a text that holds a JSON list or object
  bool is_wish = false;     // a word by which trainers may mean learning or not learning
  bool is_small = false;    // a text with lower-case letters only
  bool lists_objects = false;
};

// Returns true for words that may say whether something is learned, but not in a supported form.
bool is_wish(std::string_view word) {
  constexpr std::string_view kWishes[] = {
      "none",   "null",    "never",    "disabled", "disable", "exclude", "excluded",
      "skip",   "skipped", "ignore",   "ignored",  "hidden",  "masked",  "enabled",
      "enable", "include", "included", "all",      "only",    "last",    "assistant"};
  return std::ranges::find(kWishes, word) != std::end(kWishes);
}

bool lists_objects(JsonScanner scanner) {
  if (scanner.peek() != ValueKind::kArray) return false;
  scanner.enter_array();
  return scanner.next_item() && scanner.peek() == ValueKind::kObject;
}

MarkValue read_mark_value(std::string_view json) {
  JsonScanner scanner(json);
  MarkValue value{.kind = scanner.peek(), .truth = {}};
  const Value read = scanner.read_value();
  const std::string text = read.is_text() ? plain_word(read.text) : plain_word(json);
  char* end = nullptr;
  std::strtod(text.c_str(), &end);
  const bool is_plain = read.is_text() || value.kind == ValueKind::kNumber;
  value.is_number = is_plain && !text.empty() && *end == '\0';
  value.is_nothing =
      value.kind == ValueKind::kNull || (read.is_text() && text.empty()) ||
      ((value.kind == ValueKind::kArray || value.kind == ValueKind::kObject) && !read.is_true);
  value.is_json = read.is_text() && !text.empty() && (text.front() == '[' || text.front() == '{');
  value.is_small =
      read.is_text() && std::ranges::all_of(read.text, [](char c) { return c >= 'a' && c <= 'z'; });
  value.is_wish = read.is_text() && is_wish(text);
  value.lists_objects = lists_objects(JsonScanner(json));
  if (value.kind == ValueKind::kTrue || value.kind == ValueKind::kFalse) {
    value.truth = value.kind == ValueKind::kTrue;
  } else if (is_plain) {
    value.truth = truth_of_text(text);
  }
  value.is_word = read.is_text() && !value.truth && !value.is_number && !value.is_json;
  return value;
}

// Returns why the value cannot be followed; null if it can or says nothing.
const char* problem_of(MarkName name, const MarkValue& value) {
  switch (name) {
    case MarkName::kNone:
      return nullptr;
    case MarkName::kLearned:
    case MarkName::kNotLearned:
      if (value.truth || value.kind == ValueKind::kNull) return nullptr;
      return value.lists_objects ? kRecords : kExpected;
    case MarkName::kSkip:
      return value.truth == true || (value.is_number && !value.truth) ? kOpposite : nullptr;
    case MarkName::kUnclear:
      return value.is_nothing ? nullptr : kOpposite;
    case MarkName::kCounted: {
      const bool is_flag = value.kind == ValueKind::kTrue || value.kind == ValueKind::kFalse;
      return is_flag ? kOpposite : nullptr;
    }
    case MarkName::kMixed:
      break;
  }
  return value.is_nothing || (value.is_word && !value.is_wish) ? nullptr : kOpposite;
}

SharedMark with_problem(const TrainMark& mark, std::string problem) {
  auto faulty = std::make_shared<TrainMark>(mark);
  faulty->problem = std::move(problem);
  return faulty;
}

// Returns true if the record's field is a data column whose name only looks like a train mark:
// "weight": "70 kg", "training": "NASA", "hair_loss": true. A word in lower case may be an
// instruction: "train": "never".
bool is_data(MarkName name, JsonScanner scanner) {
  const ValueKind kind = scanner.peek();
  const MarkValue value = read_mark_value(scanner.read_raw());
  if (name != MarkName::kMixed) return value.is_word && !value.is_nothing && !value.is_small;
  return !value.is_wish && !value.is_json && kind != ValueKind::kArray &&
         kind != ValueKind::kObject;
}

}  // namespace

SharedMark judge_mark(const std::string& field, MarkName name, std::string_view json) {
  const MarkValue value = read_mark_value(json);
  TrainMark mark{.field = printable(field), .value = excerpt(json), .problem = {}};
  if (const char* problem = problem_of(name, value)) return with_problem(mark, problem);
  const bool says = (name == MarkName::kLearned || name == MarkName::kNotLearned) && value.truth;
  if (!says) return nullptr;
  mark.is_learned = *value.truth == (name == MarkName::kLearned);
  return std::make_shared<const TrainMark>(std::move(mark));
}

MarkName MarkReader::name_of_field(const std::string& field) {
  constexpr size_t kMost = 4096;  // size limit of the name cache
  const auto found = known_.find(field);
  if (found != known_.end()) return found->second;
  if (known_.size() >= kMost) known_.clear();
  return known_.emplace(field, find_mark_name(field)).first->second;
}

bool MarkReader::read(const std::string& name, JsonScanner& scanner) {
  const MarkName meaning = name_of_field(name);
  if (meaning == MarkName::kNone) {
    if (num_parts_ == 0 && scanner.peek() == ValueKind::kObject) look_inside(name, scanner);
    return false;
  }
  if (of_ == Of::kRecord && num_parts_ == 0 && is_data(meaning, scanner)) return false;
  SharedMark mark = judge_mark(name, meaning, scanner.read_raw());
  if (num_parts_ == 0) {
    add(name, std::move(mark));
  } else if (mark != nullptr) {
    parts_.push_back(std::move(mark));
  }
  return true;
}

// Looks for train marks inside an object that is not used otherwise. A mark there that excludes its
// message or record must not be ignored.
void MarkReader::look_inside(const std::string& field, JsonScanner scanner) {
  std::string name;
  scanner.enter_object();
  while (scanner.next_key(name)) {
    const MarkName meaning = name_of_field(name);
    const bool is_mark = meaning != MarkName::kNone && meaning != MarkName::kMixed;
    if (!is_mark) {
      scanner.skip();
      continue;
    }
    const SharedMark mark = judge_mark(field + "." + name, meaning, scanner.read_raw());
    // Other values are data, such as {"weight": 70}.
    if (mark == nullptr || mark->is_learned || !mark->problem.empty()) continue;
    add(mark->field,
        with_problem(*mark, concat("it stands inside \"", printable(field),
                                   "\", where it is not read; write \"train\": true or "
                                   "\"train\": false next to that field, or leave it out")));
  }
}

void MarkReader::add(const std::string& field, SharedMark mark) {
  // the last value counts
  std::erase_if(found_, [&](const auto& each) { return each.first == field; });
  if (mark != nullptr) found_.emplace_back(field, std::move(mark));
}

void MarkReader::begin_part() { ++num_parts_; }

void MarkReader::end_parts() {
  SharedMark joined = join_parts();
  if (joined != nullptr) {
    auto of_part = std::make_shared<TrainMark>(*joined);
    of_part->in_part = true;
    joined = std::move(of_part);
  }
  parts_.clear();
  num_parts_ = 0;
  add("content", std::move(joined));
}

SharedMark MarkReader::join_parts() const {
  if (parts_.empty()) return nullptr;
  const auto has_problem = [](const SharedMark& mark) { return !mark->problem.empty(); };
  const auto faulty = std::ranges::find_if(parts_, has_problem);
  if (faulty != parts_.end()) return *faulty;
  const auto hidden =
      std::ranges::find_if(parts_, [](const SharedMark& mark) { return !mark->is_learned; });
  if (hidden == parts_.end()) return parts_.front();
  return num_parts_ == 1 ? *hidden : with_problem(**hidden, kPart);
}

SharedMark MarkReader::take() {
  if (found_.empty()) return nullptr;
  SharedMark first = found_.front().second;
  for (const auto& [field, mark] : found_) {
    if (!mark->problem.empty()) return mark;
  }
  for (const auto& [field, mark] : found_) {
    if (mark->is_learned == first->is_learned) continue;
    return with_problem(*first, concat("\"", mark->field, "\" is ", mark->value,
                                       ", which says the opposite; keep one of the two"));
  }
  return first;
}

ValueKind train_of(const TrainMark* mark) {
  if (mark == nullptr || !mark->problem.empty()) return ValueKind::kMissing;
  return mark->is_learned ? ValueKind::kTrue : ValueKind::kFalse;
}

namespace {

constexpr const char* kNotFollowed =
    "FastChat's labels learn every reply; --mask_policy spans leaves this one out, and without the "
    "field it is learned";

RecordIssue refuse(int64_t message, const TrainMark& mark, const std::string& reason) {
  return {Issue::kBadMark, Outcome::kExcluded, message,
          concat("\"", mark.field, "\" is ", mark.value, ": ", reason)};
}

std::optional<Role> role_of(const Message& message, const RoleNames& roles) {
  if (message.is_call) return Role::kAssistant;
  return message.from.is_text() ? roles.find(message.from.text) : std::nullopt;
}

// Returns true if the message is to be learned according to its mark or its record's mark.
bool is_wanted(const Conversation& record, const Message& message, MarkUse use) {
  const TrainMark* mark = message.mark ? message.mark.get() : record.mark.get();
  return mark == nullptr ? use != MarkUse::kNeeded : mark->is_learned;
}

// Returns an issue if a call that is joined to the reply before it (DialogueBuilder) is marked
// differently from that reply.
std::optional<RecordIssue> find_divided_reply(const Conversation& record, const RoleNames& roles,
                                              size_t index, MarkUse use) {
  const Message& call = record.messages[index];
  if (!call.is_call || index == 0) return std::nullopt;
  const Message& before = record.messages[index - 1];
  if (role_of(before, roles) != Role::kAssistant) return std::nullopt;
  if (is_wanted(record, before, use) == is_wanted(record, call, use)) return std::nullopt;
  const TrainMark& mark = call.mark ? *call.mark : *before.mark;
  return refuse(static_cast<int64_t>(call.mark ? index : index - 1), mark,
                concat("the call is part of the reply before it, of which the other part ",
                       call.mark && before.mark ? "says the opposite" : "has no such mark",
                       "; mark both alike"));
}

std::string explain_role(Role role) {
  if (role == Role::kAssistant) {
    return "it is a reply of the prompt, of which nothing is learned; write the turns as one list, "
           "\"messages\", or leave the field out";
  }
  return concat("a message of role ", name_of(role), " is context, and only replies are learned; ",
                "leave the field out there, or write the text as one of role assistant");
}

}  // namespace

std::optional<RecordIssue> find_bad_mark(const Conversation& record, const RoleNames& roles,
                                         MarkUse use) {
  const bool follows = use != MarkUse::kRefused;
  if (const TrainMark* mark = record.mark.get(); mark != nullptr) {
    if (!mark->problem.empty()) return refuse(-1, *mark, mark->problem);
    if (!mark->is_learned && !follows) return refuse(-1, *mark, kNotFollowed);
  }
  for (size_t i = 0; i < record.messages.size(); ++i) {
    const TrainMark* mark = record.messages[i].mark.get();
    if (auto divided = find_divided_reply(record, roles, i, use)) return divided;
    if (mark == nullptr) continue;
    const auto index = static_cast<int64_t>(i);
    const Message& message = record.messages[i];
    const auto role = role_of(message, roles);
    const bool is_reply = role == Role::kAssistant && !message.is_context;
    if (mark->in_part && role && !is_reply) continue;  // a tool's result, such as [{"weight": 2.5}]
    if (!mark->problem.empty()) return refuse(index, *mark, mark->problem);
    if (mark->is_learned && role && !is_reply) return refuse(index, *mark, explain_role(*role));
    if (!mark->is_learned && is_reply && !follows) return refuse(index, *mark, kNotFollowed);
  }
  return std::nullopt;
}

}  // namespace fastsft
