#include "chat/data_fault.h"

#include "core/error.h"
#include "core/utf8.h"

namespace fastsft {

const char* name_of(FaultKind kind) {
  switch (kind) {
    case FaultKind::kKeyError:
      return "KeyError";
    case FaultKind::kIndexError:
      return "IndexError";
    case FaultKind::kTypeError:
      return "TypeError";
    case FaultKind::kAssertionError:
      return "AssertionError";
    case FaultKind::kRuntimeError:
      return "RuntimeError";
    case FaultKind::kValueError:
      break;
  }
  return "ValueError";
}

std::string printable(const std::string& text) {
  constexpr size_t kMaxSize = 60;
  std::string result;
  for (size_t at = 0; at < text.size() && result.size() < kMaxSize;) {
    const size_t size = utf8_char_size(static_cast<unsigned char>(text[at]));
    const std::string part = text.substr(at, size);
    const bool shown = static_cast<unsigned char>(part[0]) >= 0x20 &&
                       find_invalid_utf8(part) == std::string_view::npos;
    result += shown ? part : "?";
    at += shown ? size : 1;
  }
  return result.size() < kMaxSize ? result : result + "...";
}

std::string excerpt(std::string_view text) {
  constexpr size_t kNumCharacters = 40;
  std::string result;
  text = text.substr(0, text.find('\n'));
  if (text.ends_with('\r')) text.remove_suffix(1);
  size_t at = 0;
  for (size_t count = 0; at < text.size() && count < kNumCharacters; ++count) {
    const std::string_view part =
        text.substr(at, utf8_char_size(static_cast<unsigned char>(text[at])));
    const bool shown = static_cast<unsigned char>(part[0]) >= 0x20 && part[0] != '\x7F' &&
                       find_invalid_utf8(part) == std::string_view::npos;
    result += shown ? part : std::string_view("?");
    at += shown ? part.size() : 1;
  }
  return result;
}

std::string DataFault::what() const {
  const std::string named = id.empty() ? "" : concat(" (id ", printable(id), ")");
  const std::string place = message < 0 ? "" : concat(", message ", message);
  const std::string text = concat("record ", record, named, place, ": ", reason);
  if (excerpt.empty()) return text;
  return concat(text, " [line ", line, ", byte ", byte, ": ", excerpt, "]");
}

FaultKind fault_kind(Remark remark) {
  switch (remark) {
    case Remark::kNotJson:
    case Remark::kInvalidUtf8:
    case Remark::kOtherFormat:
    case Remark::kBadMark:
      return FaultKind::kValueError;
    case Remark::kEmptyConversation:
      return FaultKind::kIndexError;
    case Remark::kNotAnObject:
    case Remark::kNotText:
      return FaultKind::kTypeError;
    case Remark::kBrokenAlternation:
      return FaultKind::kAssertionError;
    case Remark::kLoneSurrogate:
      return FaultKind::kRuntimeError;
    default:
      return FaultKind::kKeyError;
  }
}

}  // namespace fastsft
