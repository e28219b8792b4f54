#include "storage/file_name.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "core/error.h"

namespace fastsft {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxNameBytes = 255;

bool contains(const fs::path& directory, const fs::path& path) {
  return std::mismatch(directory.begin(), directory.end(), path.begin(), path.end()).first ==
         directory.end();
}

std::string shortened(const std::string& name) {
  if (name.size() <= 80) return name;
  size_t end = 80;
  while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80)
    --end;  // never cuts a UTF-8 character
  return name.substr(0, end) + "...";
}

bool is_plain(const std::string& name) {
  const bool has_control_character = std::any_of(
      name.begin(), name.end(), [](unsigned char byte) { return byte < 0x20 || byte == 0x7f; });
  const bool has_drive_letter =
      name.size() >= 2 && name[1] == ':' && std::isalpha(static_cast<unsigned char>(name[0]));
  return !name.empty() && name.size() <= kMaxNameBytes && name != "." && name != ".." &&
         name.find_first_of("/\\") == std::string::npos && !has_control_character &&
         !has_drive_letter;
}

bool is_relative(const std::string& name) {
  size_t begin = 0;
  for (size_t end; (end = name.find('/', begin)) != std::string::npos; begin = end + 1) {
    if (!is_plain(name.substr(begin, end - begin))) return false;
  }
  return is_plain(name.substr(begin));
}

std::string follow(const std::string& directory, const std::string& name,
                   const std::string& where) {
  std::error_code error;
  const fs::path root = fs::canonical(directory, error);
  if (error) throw FileError(concat("cannot read directory ", directory, ": ", error.message()));
  const fs::path target = fs::weakly_canonical(root / name, error);
  if (error)
    throw FileError(concat("cannot follow ", (root / name).string(), ": ", error.message()));
  const fs::path snapshots = root.parent_path();
  const bool is_hub_blob =
      snapshots.filename() == "snapshots" && contains(snapshots.parent_path() / "blobs", target);
  require(contains(root, target) || is_hub_blob, where, ": \"", name,
          "\" is a link that leaves the directory, to ", target.string());
  return (root / name).string();
}

}  // namespace

void check_plain_file_name(const std::string& name, const std::string& where) {
  require(is_plain(name), where, ": expected the name of a file in the same directory, got \"",
          shortened(name), "\"; copy or download it again");
}

void check_relative_name(const std::string& name, const std::string& where) {
  require(is_relative(name), where,
          ": expected the name of a file in the directory or a folder of it, got \"",
          shortened(name), "\"; copy or download it again");
}

std::string path_inside(const std::string& directory, const std::string& name,
                        const std::string& where) {
  check_plain_file_name(name, where);
  return follow(directory, name, where);
}

std::string nested_path_inside(const std::string& directory, const std::string& name,
                               const std::string& where) {
  check_relative_name(name, where);
  return follow(directory, name, where);
}

}  // namespace fastsft
