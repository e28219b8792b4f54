#pragma once

#include "storage/file_system.h"

namespace fastsft::faults {

// The real file system without waiting for the disk, for what a trial does before and after its
// fault.
class UnsyncedFileSystem : public FileSystem {
 public:
  std::unique_ptr<WritableFile> create_file(const std::string& path) override {
    return std::make_unique<File>(real_.create_file(path));
  }
  std::unique_ptr<RangeFile> open_ranges(const std::string& path) override {
    return std::make_unique<Ranges>(real_.open_ranges(path));
  }
  std::unique_ptr<Directory> open_directory(const std::string& path) override {
    return real_.open_directory(path);
  }
  void sync_file(const std::string&) override {}
  void sync_directory(const std::string&) override {}
  void rename(const std::string& from, const std::string& to) override { real_.rename(from, to); }
  bool exchange(const std::string& first, const std::string& second) override {
    return real_.exchange(first, second);
  }
  void make_directory(const std::string& path) override { real_.make_directory(path); }
  void remove_file(const std::string& path) override { real_.remove_file(path); }
  void remove_directory(const std::string& path) override { real_.remove_directory(path); }
  bool exists(const std::string& path) override { return real_.exists(path); }
  std::vector<DirectoryEntry> list(const std::string& path) override { return real_.list(path); }
  uint64_t available_bytes(const std::string& path) override { return real_.available_bytes(path); }

 private:
  class File : public WritableFile {
   public:
    explicit File(std::unique_ptr<WritableFile> file) : file_(std::move(file)) {}
    void write(std::span<const std::byte> bytes) override { file_->write(bytes); }
    void sync() override {}
    void close() override { file_->close(); }

   private:
    std::unique_ptr<WritableFile> file_;
  };

  class Ranges : public RangeFile {
   public:
    explicit Ranges(std::unique_ptr<RangeFile> file) : file_(std::move(file)) {}
    void write_at(uint64_t offset, std::span<const std::byte> bytes) override {
      file_->write_at(offset, bytes);
    }
    void sync() override {}
    void close() override { file_->close(); }

   private:
    std::unique_ptr<RangeFile> file_;
  };

  FileSystem& real_ = posix_file_system();
};

}  // namespace fastsft::faults
