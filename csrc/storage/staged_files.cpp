#include "storage/staged_files.h"

#include <cstdio>
#include <random>
#include <utility>

#include "core/error.h"
#include "storage/checksummed_file.h"

namespace fastsft {

StagedFiles::StagedFiles(FileSystem& file_system, std::string directory)
    : file_system_(file_system), directory_(std::move(directory)) {}

StagedFiles::~StagedFiles() { discard(); }

void StagedFiles::discard() noexcept {
  for (const auto& staged : std::exchange(staged_, {})) {
    try {
      if (file_system_.exists(staged.path)) file_system_.remove_file(staged.path);
    } catch (const std::exception&) {
      // The caller reports the failure that came first.
    }
  }
}

std::string StagedFiles::stage(const std::string& name) {
  const std::string own = concat(".fastsft-tmp-", name, "-", random_suffix());
  staged_.push_back({name, join_path(directory_, own)});
  return staged_.back().path;
}

void StagedFiles::commit() {
  for (const auto& staged : staged_) {
    file_system_.rename(staged.path, join_path(directory_, staged.name));
  }
  staged_.clear();
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
