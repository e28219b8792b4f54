#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "data/token_dataset.h"
#include "storage/mapped_file.h"

namespace fastsft {

// A cache file that is cut, changed, of another version or of other inputs. Not the user's fault:
// it is made again.
class DamagedCache : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct TokenCache {
  std::shared_ptr<const MappedFile> file;
  TokenDataset dataset;          // over the mapped file
  std::string report;            // as it was given to the writer
  std::string_view bad_records;  // lines of --report_bad, in the mapped file
};

// Maps a finished cache. `key` is what it must have been written for. `verify` reads all of it and
// compares the checksums; without, only the trailer is checked. Throws DamagedCache, or
// std::runtime_error when the file cannot be read.
TokenCache open_token_cache(const std::string& path, const std::string& key, bool verify);

}  // namespace fastsft
