#pragma once

#include <string>

namespace fastsft {

// A path split for the *at system calls: an open directory, and a name relative to it. From the
// path's first component that begins with `.fastsft-` on, no link is followed, so that nobody can
// redirect fastsft's writes by replacing one of its directories with a link. Links before that
// component are followed as usual.
class PosixPlace {
 public:
  explicit PosixPlace(const std::string& path);
  ~PosixPlace();
  PosixPlace(const PosixPlace&) = delete;
  PosixPlace& operator=(const PosixPlace&) = delete;

  // False if a directory of the path cannot be opened; errno holds the reason.
  explicit operator bool() const { return is_open_; }
  int directory() const { return directory_; }
  const char* name() const { return name_.c_str(); }

 private:
  int directory_;
  bool is_open_ = true;
  std::string name_;
};

enum class PathKind { kNothing, kFile, kDirectory, kLink, kOther };

// Like lstat: symbolic links are not followed.
PathKind path_kind(const std::string& path);
inline bool is_there(const std::string& path) { return path_kind(path) != PathKind::kNothing; }
// Returns true if `directory`/`name` is a regular file and no part of `name` is a link. `name` may
// contain folders.
bool is_plain_file(const std::string& directory, const std::string& name);

}  // namespace fastsft
