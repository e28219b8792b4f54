#include "data/token_cache_writer.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "storage/byte_source.h"
#include "storage/crc32c.h"
#include "storage/mapped_file.h"

namespace fastsft {
namespace {

constexpr size_t kBufferSize = size_t{1} << 20;

template <typename Call>
auto as_write_error(Call&& call) {
  try {
    return call();
  } catch (const std::runtime_error& error) {
    throw CacheWriteError(error.what());
  }
}

}  // namespace

// The file that a section grows in. The ids' file becomes the cache itself; the other sections have
// temporary files next to it.
class TokenCacheWriter::Part {
 public:
  Part(FileSystem& file_system, std::string path)
      : path_(std::move(path)), file_(file_system.create_file(path_)) {
    buffer_.reserve(kBufferSize);
  }

  void write(std::span<const std::byte> bytes) {
    if (buffer_.size() + bytes.size() > kBufferSize) flush();
    if (bytes.size() > kBufferSize) {
      file_->write(bytes);
    } else {
      buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    }
    size_ += bytes.size();
  }

  void flush() {
    if (!buffer_.empty()) file_->write(buffer_);
    buffer_.clear();
  }

  void finish() {
    flush();
    file_->close();
  }

  void sync() {
    flush();
    file_->sync();
    file_->close();
  }

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }

 private:
  std::string path_;
  std::unique_ptr<WritableFile> file_;
  std::vector<std::byte> buffer_;
  uint64_t size_ = 0;
};

TokenCacheWriter::TokenCacheWriter(FileSystem& file_system, const std::string& directory)
    : file_system_(file_system),
      directory_(directory),
      base_(join_path(directory, kCacheTemporaryPrefix + random_suffix())) {
  try {
    as_write_error([&] { open(); });
  } catch (...) {
    discard();
    throw;
  }
}

void TokenCacheWriter::open() {
  for (int i = 0; i < kReportSection; ++i) {
    parts_[i] = std::make_unique<Part>(file_system_, concat(base_, "-", i));
  }
  parts_[kIdsSection]->write(std::as_bytes(std::span(kTokenCacheMagic)));
  pad();
  trailer_.sections[kIdsSection].offset = parts_[kIdsSection]->size();
  const int64_t zero = 0;
  for (const auto section : {kTokenOffsetsSection, kSpanOffsetsSection}) {
    parts_[section]->write(std::as_bytes(std::span(&zero, 1)));
  }
}

TokenCacheWriter::~TokenCacheWriter() { discard(); }

void TokenCacheWriter::discard() noexcept {
  for (auto& part : parts_) {
    if (!part) continue;
    const std::string path = part->path();
    part.reset();
    try {
      if (file_system_.exists(path)) file_system_.remove_file(path);
    } catch (const std::exception&) {
      // The caller reports the error that came first. The next run removes the file.
    }
  }
}

void TokenCacheWriter::add(const Example& example) {
  check_learned(example.learned, static_cast<int64_t>(example.ids.size()));
  as_write_error([&] { write(example); });
}

void TokenCacheWriter::write(const Example& example) {
  for (const int32_t id : example.ids) trailer_.max_id = std::max(trailer_.max_id, id);
  const auto ids = std::as_bytes(std::span(example.ids));
  checksum_ = crc32c(ids, checksum_);
  parts_[kIdsSection]->write(ids);
  parts_[kSpansSection]->write(std::as_bytes(std::span(example.learned)));
  num_tokens_ += static_cast<int64_t>(example.ids.size());
  num_spans_ += static_cast<int64_t>(example.learned.size());
  parts_[kTokenOffsetsSection]->write(std::as_bytes(std::span(&num_tokens_, 1)));
  parts_[kSpanOffsetsSection]->write(std::as_bytes(std::span(&num_spans_, 1)));
}

void TokenCacheWriter::add_bad_records(const std::string& lines) {
  as_write_error([&] { parts_[kBadRecordsSection]->write(std::as_bytes(std::span(lines))); });
}

std::string TokenCacheWriter::read_bad_records() {
  return as_write_error([&] {
    Part& part = *parts_[kBadRecordsSection];
    part.flush();
    const MappedFile lines(part.path());
    return std::string(reinterpret_cast<const char*>(lines.bytes().data()), lines.bytes().size());
  });
}

void TokenCacheWriter::pad() {
  constexpr std::array<std::byte, kTokenCacheAlignment> kZeros{};
  Part& file = *parts_[kIdsSection];
  const size_t over = file.size() % kTokenCacheAlignment;
  if (over != 0) file.write(std::span(kZeros).first(kTokenCacheAlignment - over));
}

// Appends a section's temporary file to the cache. Reads in blocks, because a mapped file's pages
// would count as this process's memory.
void TokenCacheWriter::append_section(TokenCacheSection section, const std::string& path) {
  FileSource from(path, "part of the token cache");
  pad();
  auto& place = trailer_.sections[section];
  place = {parts_[kIdsSection]->size(), 0, 0};
  std::vector<char> block(kBufferSize);
  while (const size_t size = from.read(block)) {
    const auto bytes = std::as_bytes(std::span(block).first(size));
    checksum_ = crc32c(bytes, checksum_);
    parts_[kIdsSection]->write(bytes);
    place.size += size;
  }
  place.crc32c = checksum_;
}

std::string TokenCacheWriter::commit(const std::string& key, const std::string& report) {
  return as_write_error([&] { return finish(key, report); });
}

std::string TokenCacheWriter::finish(const std::string& key, const std::string& report) {
  FASTSFT_ASSERT(key.size() == trailer_.key.size(), "a key of ", key.size(), " characters");
  Part& file = *parts_[kIdsSection];
  auto& ids = trailer_.sections[kIdsSection];
  ids.size = file.size() - ids.offset;
  ids.crc32c = checksum_;
  for (int i = kSpansSection; i < kReportSection; ++i) {
    parts_[i]->finish();
    append_section(static_cast<TokenCacheSection>(i), parts_[i]->path());
    file_system_.remove_file(parts_[i]->path());
    parts_[i].reset();
  }
  pad();
  const auto text = std::as_bytes(std::span(report));
  checksum_ = crc32c(text, checksum_);
  trailer_.sections[kReportSection] = {file.size(), report.size(), checksum_};
  file.write(text);
  pad();
  std::copy(key.begin(), key.end(), trailer_.key.begin());
  const auto bytes = std::as_bytes(std::span(&trailer_, 1));
  trailer_.crc32c = crc32c(bytes.first(bytes.size() - sizeof trailer_.crc32c));
  file.write(bytes);
  file.sync();
  const std::string path = join_path(directory_, key + ".tokens");
  file_system_.rename(file.path(), path);
  parts_[kIdsSection].reset();
  // The directory is not synced: a cache lost in a power failure is built again.
  return path;
}

}  // namespace fastsft
