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

// Parses the value `json` of a mark; null if it says nothing.
SharedMark judge_mark(const std::string& field, MarkName name, std::string_view json);

// Collects the marks of one message or record after another.
class MarkReader {
 public:
  // The fields that follow are a record's, or a message's.
  enum class Of { kMessage, kRecord };
  void begin(Of of = Of::kMessage) {
    found_.clear();
    of_ = of;
  }
  // Reads the next value of `scanner` if the field `name` is a mark. If another field is an object,
  // notes the marks in it and reads nothing.
  bool read(const std::string& name, JsonScanner& scanner);
  // Between begin_part and end_parts, marks are those of one of the parts of a content.
  void begin_part();
  void end_parts();
  // Returns the combined mark; null if there is none.
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

// Value of a mark: kTrue, kFalse, or kMissing without one.
ValueKind train_of(const TrainMark* mark);

// Whether marks that exclude replies from learning are followed.
enum class MarkUse { kFollowed, kRefused };

// Returns the first mark of a record that would not be followed, if there is one: a mark that is
// not understood, that wants a text learned that is no reply, or with kRefused excludes a reply.
// Such a record stops a run, whatever --on_bad_sample says, because it would be learned against its
// author's wish.
std::optional<RecordIssue> find_bad_mark(const Conversation& record, const RoleNames& roles,
                                         MarkUse use);

}  // namespace fastsft
