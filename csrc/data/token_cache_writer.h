#pragma once

#include <array>
#include <memory>
#include <stdexcept>
#include <string>

#include "data/label_sink.h"
#include "data/token_cache.h"
#include "storage/file_system.h"
#include "storage/staged_files.h"

namespace fastsft {

// The cache cannot be written (a full disk); the data may be sound.
class CacheWriteError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Writes a token cache while rows arrive: the file takes its name when it is whole and durable, and
// nothing is left of it otherwise, but for temporary files after a kill. Memory does not grow with
// the data.
class TokenCacheWriter : public LabelSink {
 public:
  // The directory must exist.
  TokenCacheWriter(FileSystem& file_system, const std::string& directory);
  ~TokenCacheWriter() override;

  void add(const Example& example) override;
  void add_bad_records(const std::string& lines) override;
  // All lines so far, for a run that stops and leaves no cache.
  std::string read_bad_records();
  // The path of the finished cache, `<directory>/<key>.tokens`.
  std::string commit(const std::string& key, const std::string& report);

 private:
  class Part;

  void open();
  void write(const Example& example);
  std::string finish(const std::string& key, const std::string& report);
  void append_section(TokenCacheSection section, const std::string& path);
  void pad();
  void discard() noexcept;

  FileSystem& file_system_;
  std::string directory_;
  std::string base_;  // of all temporary names
  std::array<std::unique_ptr<Part>, kReportSection> parts_;
  TokenCacheTrailer trailer_;
  int64_t num_tokens_ = 0;
  int64_t num_spans_ = 0;
  uint32_t checksum_ = 0;
};

// What temporary files of caches begin with.
inline constexpr const char* kCacheTemporaryPrefix = ".fastsft-tmp-cache-";

}  // namespace fastsft
