#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fastsft {

struct DirectoryEntry {
  std::string name;
  bool is_directory = false;
};

// A file being written. Nothing is durable before `sync`; the destructor closes without syncing.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual void write(std::span<const std::byte> bytes) = 0;
  virtual void sync() = 0;
  virtual void close() = 0;
};

// A file of which several processes write parts at the same time. As WritableFile otherwise.
class RangeFile {
 public:
  virtual ~RangeFile() = default;
  virtual void write_at(uint64_t offset, std::span<const std::byte> bytes) = 0;
  virtual void sync() = 0;
  virtual void close() = 0;
};

// A directory held open: what is removed, is removed there, wherever its path leads meanwhile.
class Directory {
 public:
  virtual ~Directory() = default;
  virtual std::vector<DirectoryEntry> list() = 0;                         // sorted by name
  virtual std::unique_ptr<Directory> enter(const std::string& name) = 0;  // never through a link
  virtual void remove_file(const std::string& name) = 0;       // of a link the link itself
  virtual void remove_directory(const std::string& name) = 0;  // must be empty
};

// Every change to the disk goes through here, so that tests can fail each single operation.
// Failures are FileError (posix_call.h) with operation, path and reason; a full disk also names the
// bytes free. Interrupted calls and short writes are continued; EIO and ESTALE are retried a few
// times, but a failed sync never is.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // A new file: nothing, no link either, may have the name.
  virtual std::unique_ptr<WritableFile> create_file(const std::string& path) = 0;
  // Keeps what is there. Never through a link.
  virtual std::unique_ptr<RangeFile> open_ranges(const std::string& path) = 0;
  // The path itself must be a directory, no link to one.
  virtual std::unique_ptr<Directory> open_directory(const std::string& path) = 0;
  virtual void sync_file(const std::string& path) = 0;
  virtual void sync_directory(const std::string& path) = 0;
  // Replaces a file; of a link the link itself is renamed or replaced.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  // Each takes the other's name in one step. False, and nothing changed, where the file system
  // cannot do that.
  virtual bool exchange(const std::string& first, const std::string& second) = 0;
  virtual void make_directory(const std::string& path) = 0;  // must not exist, parents must
  virtual void remove_file(const std::string& path) = 0;
  virtual void remove_directory(const std::string& path) = 0;  // must be empty

  virtual bool exists(const std::string& path) = 0;
  virtual std::vector<DirectoryEntry> list(const std::string& path) = 0;  // sorted by name
  virtual uint64_t available_bytes(const std::string& path) = 0;
};

FileSystem& posix_file_system();
// The same for large files that nobody reads soon and that are written during other work: past the
// page cache where that is best (posix_file.h).
FileSystem& direct_file_system();

std::string join_path(const std::string& directory, const std::string& name);
std::string parent_path(const std::string& path);  // "." for a bare name
std::string last_component(const std::string& path);

}  // namespace fastsft
