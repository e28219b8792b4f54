#pragma once

#include <string>
#include <vector>

#include "chat/conversation.h"
#include "chat/json_scanner.h"

namespace fastsft {

// "history" as LLaMA-Factory and ms-swift have it: a list of [asked, replied] pairs, the turns
// before the record's own. Null is none, and so is a table's cell "" or "[]".
class HistoryField {
 public:
  static constexpr const char* kName = "history";

  void clear();
  // The value that comes next in `scanner`.
  void read(JsonScanner& scanner);
  // Why it cannot be used; empty where it can.
  const std::string& fault() const { return fault_; }
  std::vector<Message> take() { return std::move(messages_); }

 private:
  void read_pair(JsonScanner& scanner);
  void refuse(const std::string& got);

  std::vector<Message> messages_;
  std::string fault_;
};

}  // namespace fastsft
