#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "chat/conversation.h"
#include "chat/issue.h"
#include "chat/mark_names.h"
#include "chat/role_names.h"
#include "core/json_scanner.h"

namespace fastsft {

using SharedMark = std::shared_ptr<const TrainMark>;

// Parses `json`, a train mark's value. Returns null if the value says nothing.
SharedMark judge_mark(const std::string& field, MarkName name, std::string_view json);

// Collects the train marks in a message or record.
class MarkReader {
 public:
  // Whether the marks belong to a message or to a record.
  enum class Of { kMessage, kRecord };
  void begin(Of of = Of::kMessage) {
    found_.clear();
    of_ = of;
  }
  // Reads the scanner's next value if the field `name` is a train mark. If another field is an
  // object, notes the marks inside it and reads nothing.
  bool read(const std::string& name, JsonScanner& scanner);
  // Begin and end the parts in a message's content; marks in between belong to a part.
  void begin_part();
  void end_parts();
  // Returns all collected marks combined into one; null if there are none.
  SharedMark take();

 private:
  MarkName name_of_field(const std::string& field);
  void look_inside(const std::string& field, JsonScanner scanner);
  void add(const std::string& field, SharedMark mark);
  SharedMark join_parts() const;

  std::unordered_map<std::string, MarkName> known_;
  std::vector<std::pair<std::string, SharedMark>> found_;
  std::vector<SharedMark> parts_;
  size_t num_parts_ = 0;
  Of of_ = Of::kMessage;
};

// Returns a mark's value: kTrue, kFalse, or kMissing if `mark` is null.
ValueKind train_of(const TrainMark* mark);

// Whether train marks may exclude replies from learning. kRefused: such marks are errors. kNeeded:
// replies without a mark are not learned either.
enum class MarkUse { kFollowed, kNeeded, kRefused };

// Returns an issue for the first train mark that cannot be followed, if there is one. Such a mark
// is not understood, asks to learn a text that is not a reply, or excludes a reply although `use`
// is kRefused. Such a mark stops the run whatever --on_bad_sample says, because training without it
// would go against the author's wish.
std::optional<RecordIssue> find_bad_mark(const Conversation& record, const RoleNames& roles,
                                         MarkUse use);

}  // namespace fastsft
