#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/error.h"

namespace fastsft {

// A registry of named values, which source files add at load time. A duplicate name fails at
// import. `Tag` has `static constexpr const char* kNoun` for messages ("model family", "chat
// template").
template <typename Tag, typename Value>
class Registry {
 public:
  static Registry& instance() {
    static Registry registry;
    return registry;
  }

  bool add(const std::string& name, Value value) {
    if (!entries_.emplace(name, std::move(value)).second) {
      throw std::logic_error(concat("two entries for ", Tag::kNoun, " \"", name, "\""));
    }
    return true;
  }

  const Value& get(const std::string& name) const {
    auto found = entries_.find(name);
    if (found == entries_.end()) {
      std::string known;
      for (const auto& [other, value] : entries_) known += (known.empty() ? "" : ", ") + other;
      throw_invalid("unknown ", Tag::kNoun, " \"", name, "\"; known: ", known);
    }
    return found->second;
  }

  bool contains(const std::string& name) const { return entries_.count(name) != 0; }

  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& [name, value] : entries_) result.push_back(name);
    return result;
  }

 private:
  std::map<std::string, Value> entries_;
};

}  // namespace fastsft
