#include "core/json.h"

#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include "core/error.h"

namespace fastsft {
namespace {

class Guard {
 public:
  Guard(const std::string& where, int max_depth) : where_(where), max_depth_(max_depth) {}

  bool operator()(int depth, Json::parse_event_t event, Json& parsed) {
    using Event = Json::parse_event_t;
    if (depth > max_depth_) throw_invalid(where_, ": JSON is nested deeper than ", max_depth_);
    if (event == Event::object_start) keys_.emplace_back();
    if (event == Event::object_end) keys_.pop_back();
    if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      require(keys_.back().insert(key).second, where_, ": duplicate key \"", key, "\"");
    }
    return true;
  }

 private:
  const std::string& where_;
  int max_depth_;
  std::vector<std::set<std::string>> keys_;
};

}  // namespace

Json parse_json(std::string_view text, const std::string& where, int max_depth) {
  require(text.empty() || text.back() != '\0', where, ": trailing NUL byte");
  try {
    return Json::parse(text.begin(), text.end(), Guard(where, max_depth));
  } catch (const Json::parse_error& error) {
    throw_invalid(where, ": not JSON at byte ", error.byte, ": ", error.what());
  }
}

Json read_json_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw_runtime("cannot read ", path);
  std::ostringstream text;
  text << file.rdbuf();
  return parse_json(text.str(), path);
}

}  // namespace fastsft
