#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "data/token_dataset.h"
#include "storage/mapped_file.h"

namespace fastsft {

// Thrown for a cache file that is truncated or changed, or that belongs to another version or other
// inputs. The caller builds the cache again.
class DamagedCache : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An open token cache.
struct TokenCache {
  std::shared_ptr<const MappedFile> file;
  TokenDataset dataset;          // reads from the mapped file
  std::string report;            // report text as it was given to the writer
  std::string_view bad_records;  // --report_bad lines, inside the mapped file
};

// Maps a finished cache. `key`: hash of the inputs for which the cache must have been written.
// `verify`: compare all sections' checksums, which reads the whole file; otherwise only the trailer
// is checked. Throws DamagedCache, or std::runtime_error if the file cannot be read.
TokenCache open_token_cache(const std::string& path, const std::string& key, bool verify);

// Format of a token cache: one little-endian file, with numbers as in memory.
//
//   offset 0        kTokenCacheMagic, then zeros up to kTokenCacheAlignment
//   sections        each at a multiple of kTokenCacheAlignment, in the order of TokenCacheSection
//   end             TokenCacheTrailer
//
// The trailer is written last. A file without a trailer was never finished.
inline constexpr std::array<char, 8> kTokenCacheMagic = {'F', 'S', 'F', 'T', 'T', 'O', 'K', 'S'};
inline constexpr uint32_t kTokenCacheVersion = 1;
inline constexpr size_t kTokenCacheAlignment = 64;

enum TokenCacheSection {
  kIdsSection,           // one int32 per token
  kSpansSection,         // two int32 per learned span
  kTokenOffsetsSection,  // one int64 per row, and the last row's end
  kSpanOffsetsSection,   // one int64 per row, and the last row's end
  kBadRecordsSection,    // --report_bad lines
  kReportSection,        // the data report
  kNumTokenCacheSections
};

struct TokenCacheTrailer {
  struct Section {
    uint64_t offset = 0;
    uint64_t size = 0;    // bytes
    uint64_t crc32c = 0;  // checksum over this section and all earlier sections
  };

  std::array<char, 8> magic = kTokenCacheMagic;
  uint32_t version = kTokenCacheVersion;
  int32_t max_id = -1;
  std::array<Section, kNumTokenCacheSections> sections;
  std::array<char, 64> key{};  // hash of the inputs, in hexadecimal digits
  uint64_t crc32c = 0;         // checksum over the trailer's earlier fields
};

static_assert(std::endian::native == std::endian::little);
static_assert(sizeof(TokenCacheTrailer) == 16 + 24 * kNumTokenCacheSections + 72);

}  // namespace fastsft
