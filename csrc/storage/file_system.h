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

// A file open for writing. Nothing is durable before `sync`. The destructor closes the file without
// syncing.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual void write(std::span<const std::byte> bytes) = 0;
  virtual void sync() = 0;
  virtual void close() = 0;
};

// A file whose ranges several processes write at the same time. Durability is as for WritableFile.
class RangeFile {
 public:
  virtual ~RangeFile() = default;
  virtual void write_at(uint64_t offset, std::span<const std::byte> bytes) = 0;
  virtual void sync() = 0;
  virtual void close() = 0;
};

// An open directory. Removals happen in this directory even if its path is replaced meanwhile.
class Directory {
 public:
  virtual ~Directory() = default;
  virtual std::vector<DirectoryEntry> list() = 0;                         // sorted by name
  virtual std::unique_ptr<Directory> enter(const std::string& name) = 0;  // fails for a link
  virtual void remove_file(const std::string& name) = 0;  // removes a link itself, not its target
  virtual void remove_directory(const std::string& name) = 0;  // the directory must be empty
};

// The interface for every change on disk, so that tests can make each operation fail. A failure
// throws FileError (posix_call.h) with operation, path and reason; for a full disk it also names
// the free bytes. Interrupted calls and short writes are continued. EIO and ESTALE are retried a
// few times, except after a failed sync.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Creates a file for writing. Fails if anything, even a link, has the name.
  virtual std::unique_ptr<WritableFile> create_file(const std::string& path) = 0;
  // Opens a file for writing, and creates it if needed. Existing content is kept. Fails for a link.
  virtual std::unique_ptr<RangeFile> open_ranges(const std::string& path) = 0;
  // Opens a directory. Fails if the path itself is a link.
  virtual std::unique_ptr<Directory> open_directory(const std::string& path) = 0;
  virtual void sync_file(const std::string& path) = 0;
  virtual void sync_directory(const std::string& path) = 0;
  // Renames a file or directory, and replaces an existing file. Renames or replaces a link itself,
  // not its target.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  // Exchanges two names in one step. Returns false, without a change, if the file system cannot do
  // that.
  virtual bool exchange(const std::string& first, const std::string& second) = 0;
  // fails if the path exists or its parent does not
  virtual void make_directory(const std::string& path) = 0;
  virtual void remove_file(const std::string& path) = 0;
  virtual void remove_directory(const std::string& path) = 0;  // the directory must be empty

  virtual bool exists(const std::string& path) = 0;
  virtual std::vector<DirectoryEntry> list(const std::string& path) = 0;  // sorted by name
  virtual uint64_t available_bytes(const std::string& path) = 0;
};

FileSystem& posix_file_system();
// Returns a file system for large files that are written in the background and not read soon. It
// writes past the page cache if that is faster (posix_file.h).
FileSystem& direct_file_system();

std::string join_path(const std::string& directory, const std::string& name);
std::string parent_path(const std::string& path);  // returns "." for a name without a slash
std::string last_component(const std::string& path);

}  // namespace fastsft
