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

// Thrown if the cache cannot be written, for example on a full disk. The data set itself may be
// sound.
class CacheWriteError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Writes a token cache row by row. The file gets its name when it is complete and durable. Without
// a commit nothing is left, except temporary files if the process was killed. Memory does not grow
// with the data.
class TokenCacheWriter : public LabelSink {
 public:
  // `directory` must exist.
  TokenCacheWriter(FileSystem& file_system, const std::string& directory);
  ~TokenCacheWriter() override;

  void add(const Example& example) override;
  void add_bad_records(const std::string& lines) override;
  // Returns all lines of --report_bad so far, for a run that stops without a cache.
  std::string read_bad_records();
  // Finishes the cache `<directory>/<key>.tokens` and returns its path.
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
  std::string base_;  // common prefix of the temporary names
  std::array<std::unique_ptr<Part>, kReportSection> parts_;
  TokenCacheTrailer trailer_;
  int64_t num_tokens_ = 0;
  int64_t num_spans_ = 0;
  uint32_t checksum_ = 0;
};

// Name prefix of temporary cache files.
inline constexpr const char* kCacheTemporaryPrefix = ".fastsft-tmp-cache-";

}  // namespace fastsft
