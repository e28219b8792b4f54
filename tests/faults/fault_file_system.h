#pragma once

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "storage/file_system.h"

namespace fastsft::faults {

// The machine stopped: what follows in the same process must not touch the disk any more.
struct Crash : std::runtime_error {
  Crash() : std::runtime_error("crash") {}
};

enum class Fault { kNone, kCrash, kOnce, kForever };

// What the file system under test is able to do. Without `syncs` nothing becomes durable: a check
// that finds nothing wrong then checks nothing.
struct Abilities {
  bool exchanges = true;
  bool syncs = true;
};

// A real directory tree whose k-th change fails, and that after a crash loses what was never
// synced: file contents are cut or zeroed from the last synced byte on, and of each directory any
// number of the latest entries' changes is undone (create, rename, exchange, mkdir, unlink, rmdir).
class FaultFileSystem : public FileSystem {
 public:
  // Removed files are kept in `graveyard`, outside the tree, until the crash decides about them.
  FaultFileSystem(std::string graveyard, Fault fault, int64_t at, Abilities abilities);

  int64_t operations() const { return operations_; }
  // Once, after a Crash was thrown: what the disk may look like when the machine comes back.
  void lose_unsynced(std::mt19937_64& random);

  std::unique_ptr<WritableFile> create_file(const std::string& path) override;
  std::unique_ptr<RangeFile> open_ranges(const std::string& path) override;
  std::unique_ptr<Directory> open_directory(const std::string& path) override;
  void sync_file(const std::string& path) override;
  void sync_directory(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  bool exchange(const std::string& first, const std::string& second) override;
  void make_directory(const std::string& path) override;
  void remove_file(const std::string& path) override;
  void remove_directory(const std::string& path) override;
  bool exists(const std::string& path) override;
  std::vector<DirectoryEntry> list(const std::string& path) override;
  uint64_t available_bytes(const std::string& path) override;

 private:
  friend class FaultFile;
  friend class FaultRanges;
  // A file or directory under whatever path it has now.
  struct Node {
    std::string path;
    uint64_t size = 0;
    uint64_t synced = 0;
    // Of a file that is written in ranges: [offset, end) that no sync has covered.
    std::vector<std::pair<uint64_t, uint64_t>> dirty{};
  };
  using NodePtr = std::shared_ptr<Node>;
  struct Change {
    NodePtr directory;
    std::function<void()> undo;
  };

  // Counts one change and fails it when its turn has come.
  void step();
  void check_alive() const;
  static void lose_ranges(const Node& node, std::mt19937_64& random);
  NodePtr node(const std::string& path);
  void moved(const std::string& from, const std::string& to);
  void swapped(const std::string& first, const std::string& second);
  void record(const std::string& path, std::function<void()> undo);
  std::string bury(const std::string& path);

  std::string graveyard_;
  Fault fault_;
  int64_t at_;
  Abilities abilities_;
  bool dead_ = false;
  int64_t operations_ = 0;
  int64_t buried_ = 0;
  std::map<std::string, NodePtr> nodes_;  // by path
  std::vector<Change> changes_;           // not synced yet, in order
};

}  // namespace fastsft::faults
