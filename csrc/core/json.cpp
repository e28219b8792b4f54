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

// The parser quotes what it read last, which may not be UTF-8; a message must be.
std::string printable(std::string message) {
  for (char& byte : message) {
    if (static_cast<unsigned char>(byte) >= 0x7f) byte = '?';
  }
  return message;
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where, int max_depth) {
  // The parser would take a NUL for the end of the text.
  require(text.find('\0') == text.npos, where, ": NUL byte at ", text.find('\0'));
  try {
    return Json::parse(text.begin(), text.end(), Guard(where, max_depth));
  } catch (const Json::parse_error& error) {
    throw_invalid(where, ": not JSON at byte ", error.byte, ": ", printable(error.what()));
  } catch (const Json::exception& error) {  // a number out of range
    throw_invalid(where, ": ", printable(error.what()));
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
