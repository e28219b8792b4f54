#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "chat/conversation.h"
#include "chat/json_scanner.h"
#include "chat/mark_names.h"

namespace fastsft {

using SharedMark = std::shared_ptr<const TrainMark>;

// What the value `json` of a field with such a name says; null for nothing.
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
  // Reads the value that comes next in `scanner` if the field `name` is a mark. Of another field
  // that is an object, notes the marks in it and reads nothing.
  bool read(const std::string& name, JsonScanner& scanner);
  // Between begin_part and end_parts, marks are those of one of the parts of a content.
  void begin_part();
  void end_parts();
  // What all of them say together; null for nothing.
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

// The value that a mark means: kTrue, kFalse, or kMissing for none.
ValueKind train_of(const TrainMark* mark);

}  // namespace fastsft
