#include <filesystem>

#include "storage/file_system.h"

namespace fastsft {
namespace {

// "a/b/" names the same directory as "a/b".
std::filesystem::path without_trailing_slash(const std::string& path) {
  std::filesystem::path result(path);
  return result.has_filename() ? result : result.parent_path();
}

}  // namespace

std::string join_path(const std::string& directory, const std::string& name) {
  return (std::filesystem::path(directory) / name).string();
}

std::string parent_path(const std::string& path) {
  const auto parent = without_trailing_slash(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

std::string last_component(const std::string& path) {
  return without_trailing_slash(path).filename().string();
}

}  // namespace fastsft
