#include "core/json.h"

#include <set>
#include <stdexcept>
#include <vector>

#include "core/error.h"
#include "core/regular_file.h"

namespace fastsft {
namespace {

class Guard {
 public:
  Guard(const std::string& where, int max_depth, const char* only)
      : where_(where), max_depth_(max_depth), only_(only) {}

  bool operator()(int depth, Json::parse_event_t event, Json& parsed) {
    using Event = Json::parse_event_t;
    if (depth > max_depth_) throw_invalid(where_, ": JSON is nested deeper than ", max_depth_);
    if (event == Event::object_start) keys_.emplace_back();
    if (event == Event::object_end) keys_.pop_back();
    if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      require(keys_.back().insert(key).second, where_, ": duplicate key \"", key, "\"");
      if (depth == 1) is_kept_ = only_ == nullptr || key == only_;
      require(!is_kept_ || keys_.back().size() <= kMaxJsonKeys, where_, ": an object of more than ",
              kMaxJsonKeys, " keys");
      return is_kept_;
    }
    return true;
  }

 private:
  const std::string& where_;
  int max_depth_;
  const char* only_;
  bool is_kept_ = true;
  std::vector<std::set<std::string>> keys_;
};

// Returns the parser's message without its number. The semicolon before the last token becomes a
// comma, because in messages of fastsft a semicolon begins the advice. Bytes that are not printable
// ASCII are replaced: the parser quotes its input, which may not be UTF-8.
std::string printable(std::string message) {
  constexpr std::string_view kQuoted = "; last read: ";
  if (message.starts_with('[')) message.erase(0, message.find(' ') + 1);
  if (const size_t at = message.find(kQuoted); at != message.npos) message[at] = ',';
  for (char& byte : message) {
    if (static_cast<unsigned char>(byte) >= 0x7f) byte = '?';
  }
  return message;
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where, int max_depth, const char* only) {
  // The parser would treat a NUL byte as the text's end.
  require(text.find('\0') == text.npos, where, ": NUL byte at ", text.find('\0'));
  try {
    return Json::parse(text.begin(), text.end(), Guard(where, max_depth, only));
  } catch (const Json::parse_error& error) {
    throw_invalid(where, ": not JSON at byte ", error.byte, ": ", printable(error.what()));
  } catch (const Json::exception& error) {  // for example, a number out of range
    throw_invalid(where, ": ", printable(error.what()));
  }
}

Json read_json_file(const std::string& path, const char* only) {
  const std::string text = read_regular_file(path, kMaxJsonFile);
  try {
    return parse_json(text, path, 64, only);
  } catch (const std::invalid_argument& error) {
    throw_invalid(error.what(), "; correct the file, or copy it again");
  }
}

}  // namespace fastsft
