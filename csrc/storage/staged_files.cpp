#include "storage/staged_files.h"

#include <cstdio>
#include <random>
#include <utility>

#include "storage/checksummed_file.h"

namespace fastsft {

StagedFiles::StagedFiles(FileSystem& file_system, std::string directory)
    : file_system_(file_system), directory_(std::move(directory)), suffix_(random_suffix()) {}

StagedFiles::~StagedFiles() { discard(); }

void StagedFiles::discard() noexcept {
  for (const auto& name : std::exchange(names_, {})) {
    try {
      const std::string path = temporary_path(name);
      if (file_system_.exists(path)) file_system_.remove_file(path);
    } catch (const std::exception&) {
      // The failure that brought us here is the one to report.
    }
  }
}

std::string StagedFiles::temporary_path(const std::string& name) const {
  return join_path(directory_, ".fastsft-tmp-" + name + "-" + suffix_);
}

std::string StagedFiles::stage(const std::string& name) {
  names_.push_back(name);
  return temporary_path(name);
}

void StagedFiles::commit() {
  for (const auto& name : names_) {
    file_system_.rename(temporary_path(name), join_path(directory_, name));
  }
  names_.clear();
  file_system_.sync_directory(directory_);
}

void replace_file(FileSystem& file_system, const std::string& path, const std::string& content) {
  StagedFiles staged(file_system, parent_path(path));
  ChecksummedFile file(file_system, staged.stage(last_component(path)));
  file.write(content);
  file.finish();
  staged.commit();
}

std::string random_suffix() {
  std::random_device device;
  char text[17];
  std::snprintf(text, sizeof text, "%08x%08x", static_cast<unsigned>(device()),
                static_cast<unsigned>(device()));
  return text;
}

}  // namespace fastsft
