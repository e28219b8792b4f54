#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace fastsft {

// A stream of bytes that is read once: a file, a pipe or a decompressor's output.
class ByteSource {
 public:
  virtual ~ByteSource() = default;

  // Reads at least 1 byte into `to`, which must not be empty. Returns how many bytes were read, or
  // 0 at the end. Throws std::runtime_error if reading fails.
  virtual size_t read(std::span<char> to) = 0;
};

// A file that is read in blocks. Unlike a mapped file, it does not kill the process if another
// program truncates it (the stream then ends early), and its pages do not stay in the process's
// memory.
class FileSource : public ByteSource {
 public:
  // `what` names the file in messages ("data file"). Throws std::invalid_argument if `path` is no
  // regular file, std::runtime_error if it cannot be read.
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

// A file from which ranges are read. Unlike the pages of a mapped file, the bytes do not stay in
// the process's memory.
class FileBytes {
 public:
  // Throws FileError if `path` is no regular file or cannot be opened.
  explicit FileBytes(const std::string& path);
  ~FileBytes();
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  // Fills `to` with the bytes at `offset`. Throws std::runtime_error if the file has fewer bytes.
  void read_at(uint64_t offset, std::span<std::byte> to) const;
  uint64_t size() const { return size_; }

 private:
  std::string path_;
  int descriptor_;
  uint64_t size_ = 0;
};

}  // namespace fastsft
