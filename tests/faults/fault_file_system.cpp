#include "faults/fault_file_system.h"

#include <filesystem>
#include <fstream>

#include "core/error.h"

namespace fastsft::faults {

namespace fs = std::filesystem;

// Writes go to the real file at once; half of a write has happened when it crashes.
class FaultFile : public WritableFile {
 public:
  FaultFile(FaultFileSystem& owner, FaultFileSystem::NodePtr node)
      : owner_(owner),
        node_(std::move(node)),
        file_(posix_file_system().create_file(node_->path)) {}

  void write(std::span<const std::byte> bytes) override {
    try {
      owner_.step();
    } catch (const Crash&) {
      put(bytes.first(bytes.size() / 2));
      throw;
    }
    put(bytes);
  }
  void sync() override {
    owner_.step();
    if (owner_.abilities_.syncs) node_->synced = node_->size;
  }
  void close() override {
    owner_.step();
    file_->close();
  }

 private:
  void put(std::span<const std::byte> bytes) {
    file_->write(bytes);
    node_->size += bytes.size();
  }

  FaultFileSystem& owner_;
  FaultFileSystem::NodePtr node_;
  std::unique_ptr<WritableFile> file_;
};

// The same of a file that several ranks write: a sync by one of them covers what all have written.
class FaultRanges : public RangeFile {
 public:
  FaultRanges(FaultFileSystem& owner, FaultFileSystem::NodePtr node)
      : owner_(owner),
        node_(std::move(node)),
        file_(posix_file_system().open_ranges(node_->path)) {}

  void write_at(uint64_t offset, std::span<const std::byte> bytes) override {
    try {
      owner_.step();
    } catch (const Crash&) {
      put(offset, bytes.first(bytes.size() / 2));
      throw;
    }
    put(offset, bytes);
  }
  void sync() override {
    owner_.step();
    if (!owner_.abilities_.syncs) return;
    node_->dirty.clear();
    node_->synced = node_->size;
  }
  void close() override {
    owner_.step();
    file_->close();
  }

 private:
  void put(uint64_t offset, std::span<const std::byte> bytes) {
    file_->write_at(offset, bytes);
    node_->dirty.emplace_back(offset, offset + bytes.size());
    node_->size = std::max<uint64_t>(node_->size, offset + bytes.size());
  }

  FaultFileSystem& owner_;
  FaultFileSystem::NodePtr node_;
  std::unique_ptr<RangeFile> file_;
};

// Removals through it are those of the file system, at the path that it had when it was opened.
class FaultDirectory : public Directory {
 public:
  FaultDirectory(FaultFileSystem& owner, std::string path)
      : owner_(owner), path_(std::move(path)) {}

  std::vector<DirectoryEntry> list() override { return owner_.list(path_); }
  std::unique_ptr<Directory> enter(const std::string& name) override {
    return owner_.open_directory(join_path(path_, name));
  }
  void remove_file(const std::string& name) override { owner_.remove_file(join_path(path_, name)); }
  void remove_directory(const std::string& name) override {
    owner_.remove_directory(join_path(path_, name));
  }

 private:
  FaultFileSystem& owner_;
  std::string path_;
};

FaultFileSystem::FaultFileSystem(std::string graveyard, Fault fault, int64_t at,
                                 Abilities abilities)
    : graveyard_(std::move(graveyard)), fault_(fault), at_(at), abilities_(abilities) {}

void FaultFileSystem::check_alive() const {
  if (dead_) throw Crash();
}

void FaultFileSystem::step() {
  check_alive();
  const int64_t number = operations_++;
  if (fault_ == Fault::kNone || number < at_) return;
  if (fault_ == Fault::kCrash) {
    dead_ = true;
    throw Crash();
  }
  if (fault_ == Fault::kForever || number == at_)
    throw_runtime("injected: No space left on device");
}

FaultFileSystem::NodePtr FaultFileSystem::node(const std::string& path) {
  NodePtr& found = nodes_[path];
  if (!found) {
    found = std::make_shared<Node>(Node{.path = path});
    if (fs::is_regular_file(path)) found->size = found->synced = fs::file_size(path);
  }
  return found;
}

void FaultFileSystem::moved(const std::string& from, const std::string& to) {
  nodes_.erase(to);
  std::map<std::string, NodePtr> kept;
  for (auto& [path, entry] : nodes_) {
    const bool inside = path == from || path.starts_with(from + "/");
    if (inside) entry->path = to + path.substr(from.size());
    kept[entry->path] = entry;
  }
  nodes_ = std::move(kept);
}

void FaultFileSystem::swapped(const std::string& first, const std::string& second) {
  const std::string aside = first + ".aside";
  moved(first, aside);
  moved(second, first);
  moved(aside, second);
}

void FaultFileSystem::record(const std::string& path, std::function<void()> undo) {
  changes_.push_back({node(parent_path(path)), std::move(undo)});
}

std::string FaultFileSystem::bury(const std::string& path) {
  const std::string grave = join_path(graveyard_, std::to_string(buried_++));
  fs::rename(path, grave);
  moved(path, grave);
  return grave;
}

std::unique_ptr<WritableFile> FaultFileSystem::create_file(const std::string& path) {
  step();
  FASTSFT_ASSERT(!fs::exists(path));  // files are never written in place
  auto file = std::make_unique<FaultFile>(*this, node(path));
  const NodePtr created = node(path);
  record(path, [created] { fs::remove(created->path); });
  return file;
}

std::unique_ptr<RangeFile> FaultFileSystem::open_ranges(const std::string& path) {
  step();
  const bool is_new = !fs::exists(path);
  auto file = std::make_unique<FaultRanges>(*this, node(path));
  if (is_new) {
    const NodePtr created = node(path);
    record(path, [created] { fs::remove(created->path); });
  }
  return file;
}

std::unique_ptr<Directory> FaultFileSystem::open_directory(const std::string& path) {
  check_alive();
  FASTSFT_ASSERT(fs::is_directory(fs::symlink_status(path)));
  return std::make_unique<FaultDirectory>(*this, path);
}

void FaultFileSystem::sync_file(const std::string& path) {
  step();
  if (abilities_.syncs) node(path)->synced = node(path)->size;
}

void FaultFileSystem::sync_directory(const std::string& path) {
  step();
  if (!abilities_.syncs) return;
  const NodePtr directory = node(path);
  std::erase_if(changes_, [&](const Change& change) { return change.directory == directory; });
}

void FaultFileSystem::rename(const std::string& from, const std::string& to) {
  step();
  const bool replaces = fs::is_regular_file(to);
  const std::string grave = replaces ? bury(to) : "";
  fs::rename(from, to);
  const NodePtr renamed = node(from);
  moved(from, to);
  const NodePtr source = node(parent_path(from)), parent = node(parent_path(to));
  const std::string old_name = last_component(from), new_name = last_component(to);
  record(to, [this, renamed, source, parent, old_name, new_name, grave] {
    const std::string back = join_path(source->path, old_name);
    fs::rename(renamed->path, back);
    moved(renamed->path, back);
    if (!grave.empty()) fs::rename(grave, join_path(parent->path, new_name));
  });
}

bool FaultFileSystem::exchange(const std::string& first, const std::string& second) {
  if (!abilities_.exchanges) return false;
  step();
  FASTSFT_ASSERT(posix_file_system().exchange(first, second));
  const NodePtr one = node(first), other = node(second);
  swapped(first, second);
  record(first, [this, one, other] {
    FASTSFT_ASSERT(posix_file_system().exchange(one->path, other->path));
    swapped(one->path, other->path);
  });
  return true;
}

void FaultFileSystem::make_directory(const std::string& path) {
  step();
  posix_file_system().make_directory(path);
  const NodePtr made = node(path);
  record(path, [made] { fs::remove_all(made->path); });
}

void FaultFileSystem::remove_file(const std::string& path) {
  step();
  const NodePtr removed = node(path), parent = node(parent_path(path));
  const std::string name = last_component(path);
  bury(path);
  record(path, [this, removed, parent, name] {
    const std::string back = join_path(parent->path, name);
    if (!fs::exists(parent->path)) return;  // its directory is gone for good
    fs::rename(removed->path, back);
    moved(removed->path, back);
  });
}

void FaultFileSystem::remove_directory(const std::string& path) {
  step();
  posix_file_system().remove_directory(path);
  const NodePtr removed = node(path);
  record(path, [removed] { fs::create_directory(removed->path); });
}

// Of each range an end reads as zeros.
void FaultFileSystem::lose_ranges(const Node& node, std::mt19937_64& random) {
  std::fstream file(node.path, std::ios::in | std::ios::out | std::ios::binary);
  for (const auto& [begin, end] : node.dirty) {
    const uint64_t kept = begin + random() % (end - begin + 1);
    file.seekp(static_cast<std::streamoff>(kept));
    file << std::string(end - kept, '\0');
  }
}

void FaultFileSystem::lose_unsynced(std::mt19937_64& random) {
  for (auto& [path, entry] : nodes_) {
    if (!fs::is_regular_file(entry->path)) continue;
    if (!entry->dirty.empty()) lose_ranges(*entry, random);
    if (entry->synced >= entry->size) continue;
    const uint64_t kept = entry->synced + random() % (entry->size - entry->synced + 1);
    fs::resize_file(entry->path, kept);
    if (random() % 2 == 0) fs::resize_file(entry->path, entry->size);  // the rest reads as zeros
  }
  // Each directory keeps its changes up to some moment of its own.
  std::map<Node*, size_t> kept;
  for (const auto& change : changes_) ++kept[change.directory.get()];
  for (auto& [directory, count] : kept) count = random() % (count + 1);
  std::map<Node*, size_t> seen;
  std::vector<const Change*> lost;
  for (const auto& change : changes_) {
    if (seen[change.directory.get()]++ >= kept[change.directory.get()]) lost.push_back(&change);
  }
  for (auto change = lost.rbegin(); change != lost.rend(); ++change) (*change)->undo();
}

bool FaultFileSystem::exists(const std::string& path) {
  check_alive();
  return posix_file_system().exists(path);
}

std::vector<DirectoryEntry> FaultFileSystem::list(const std::string& path) {
  check_alive();
  return posix_file_system().list(path);
}

uint64_t FaultFileSystem::available_bytes(const std::string& path) {
  check_alive();
  return posix_file_system().available_bytes(path);
}

}  // namespace fastsft::faults
