#include "data/token_cache.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "storage/crc32c.h"

namespace fastsft {
namespace {

using Bytes = std::span<const std::byte>;

template <typename... Parts>
void check(bool ok, const MappedFile& file, const Parts&... parts) {
  if (!ok) throw DamagedCache(concat(file.path(), ": ", parts...));
}

TokenCacheTrailer read_trailer(const MappedFile& file, const std::string& key) {
  TokenCacheTrailer trailer;
  const Bytes bytes = file.bytes();
  check(bytes.size() >= sizeof trailer + kTokenCacheAlignment, file, "only ", bytes.size(),
        " bytes");
  const bool begins = std::memcmp(bytes.data(), kTokenCacheMagic.data(), 8) == 0;
  std::memcpy(&trailer, bytes.data() + bytes.size() - sizeof trailer, sizeof trailer);
  check(begins && trailer.magic == kTokenCacheMagic, file, "not a whole token cache");
  check(trailer.version == kTokenCacheVersion, file, "version ", trailer.version, ", expected ",
        kTokenCacheVersion);
  const Bytes own = std::as_bytes(std::span(&trailer, 1));
  check(crc32c(own.first(own.size() - sizeof trailer.crc32c)) == trailer.crc32c, file,
        "the trailer's checksum is wrong");
  check(std::string(trailer.key.begin(), trailer.key.end()) == key, file, "made of other inputs");
  return trailer;
}

Bytes section(const MappedFile& file, const TokenCacheTrailer& trailer, int index) {
  const auto& place = trailer.sections[index];
  const uint64_t size = file.bytes().size();
  check(place.offset % kTokenCacheAlignment == 0 && place.offset <= size &&
            place.size <= size - place.offset,
        file, "section ", index, " lies outside the file");
  return file.bytes().subspan(place.offset, place.size);
}

template <typename Value>
std::span<const Value> values(const MappedFile& file, const TokenCacheTrailer& trailer, int index) {
  const Bytes bytes = section(file, trailer, index);
  check(bytes.size() % sizeof(Value) == 0, file, "section ", index, " has a broken end");
  return {reinterpret_cast<const Value*>(bytes.data()), bytes.size() / sizeof(Value)};
}

std::string_view text(const MappedFile& file, const TokenCacheTrailer& trailer, int index) {
  const auto bytes = values<char>(file, trailer, index);
  return {bytes.data(), bytes.size()};
}

// Throws DamagedCache unless the offsets begin at 0, never decrease and stop at `end`. All later
// reads of rows rely on this.
void check_offsets(const MappedFile& file, std::span<const int64_t> offsets, size_t end) {
  check(!offsets.empty() && offsets.front() == 0 &&
            std::is_sorted(offsets.begin(), offsets.end()) &&
            offsets.back() == static_cast<int64_t>(end),
        file, "the rows' ends do not fit");
}

}  // namespace

TokenCache open_token_cache(const std::string& path, const std::string& key, bool verify) {
  auto file = std::make_shared<const MappedFile>(path);
  const TokenCacheTrailer trailer = read_trailer(*file, key);
  uint32_t sum = 0;
  for (int i = 0; verify && i < kNumTokenCacheSections; ++i) {
    sum = crc32c(section(*file, trailer, i), sum);
    check(sum == trailer.sections[i].crc32c, *file, "the checksum of section ", i, " is wrong");
  }
  const TokenArrays arrays = {values<int32_t>(*file, trailer, kIdsSection),
                              values<TokenSpan>(*file, trailer, kSpansSection),
                              values<int64_t>(*file, trailer, kTokenOffsetsSection),
                              values<int64_t>(*file, trailer, kSpanOffsetsSection)};
  check_offsets(*file, arrays.token_offsets, arrays.ids.size());
  check_offsets(*file, arrays.span_offsets, arrays.spans.size());
  check(arrays.token_offsets.size() == arrays.span_offsets.size(), *file, "rows without an end");
  const std::string_view report = text(*file, trailer, kReportSection);
  const std::string_view bad_records = text(*file, trailer, kBadRecordsSection);
  const auto checksum = static_cast<uint32_t>(trailer.sections[kSpanOffsetsSection].crc32c);
  return {file, TokenDataset(file, arrays, trailer.max_id, checksum), std::string(report),
          bad_records};
}

}  // namespace fastsft
