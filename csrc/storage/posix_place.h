#pragma once

#include <string>

namespace fastsft {

// Where a call of the *at family works: a name, and an open directory that it is relative to. From
// the first component with a name of our own (.fastsft-...) on no link is followed: who puts a link
// where our directory was, moves nothing that we write. Before it links lead as usual.
class PosixPlace {
 public:
  explicit PosixPlace(const std::string& path);
  ~PosixPlace();
  PosixPlace(const PosixPlace&) = delete;
  PosixPlace& operator=(const PosixPlace&) = delete;

  // False when a directory on the way cannot be opened; errno says why.
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
// Whether `name`, which may have folders, is a file in `directory` that is reached through no link.
bool is_plain_file(const std::string& directory, const std::string& name);

}  // namespace fastsft
