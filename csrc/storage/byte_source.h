#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace fastsft {

// Bytes from first to last, read once: a file, a pipe, what a decompressor gives.
class ByteSource {
 public:
  virtual ~ByteSource() = default;

  // Reads some bytes into `to`, which is not empty; 0 at the end. Throws std::runtime_error when
  // reading fails.
  virtual size_t read(std::span<char> to) = 0;
};

// A file, read in blocks: unlike a mapping, a file that shrinks meanwhile ends early and does not
// kill the process, and what was read leaves memory again.
class FileSource : public ByteSource {
 public:
  // `what` names the file in messages ("data file"). std::invalid_argument when it is no regular
  // file, std::runtime_error when it cannot be read.
  FileSource(const std::string& path, const std::string& what);
  ~FileSource() override;
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  size_t read(std::span<char> to) override;

 private:
  std::string name_;
  int descriptor_;
};

class TextSource : public ByteSource {
 public:
  explicit TextSource(std::string text);
  size_t read(std::span<char> to) override;

 private:
  std::string text_;
  size_t at_ = 0;
};

// Reads pieces of a file. Unlike a mapping, what was read does not stay in the process's memory.
class FileBytes {
 public:
  // FileError when it is no regular file, or cannot be opened.
  explicit FileBytes(const std::string& path);
  ~FileBytes();
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  // Fills `to` from `offset` on. std::runtime_error when the file ends before.
  void read_at(uint64_t offset, std::span<std::byte> to) const;
  uint64_t size() const { return size_; }

 private:
  std::string path_;
  int descriptor_;
  uint64_t size_ = 0;
};

}  // namespace fastsft
