#include "data/shared_rows.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fastsft {
namespace {

// Of the length and the last ids: chat templates begin all rows alike.
size_t hash_of(std::span<const int32_t> ids) {
  constexpr size_t kMost = 64;
  const auto last = ids.last(std::min(ids.size(), kMost));
  const std::string_view bytes(reinterpret_cast<const char*>(last.data()), last.size_bytes());
  return std::hash<std::string_view>()(bytes) ^ ids.size();
}

bool is_same(const TokenSpan& one, const TokenSpan& other) {
  return one.begin == other.begin && one.end == other.end;
}

}  // namespace

int64_t count_shared_rows(const TokenDataset& rows, const TokenDataset& others) {
  std::unordered_multimap<size_t, int64_t> open;  // rows that were not found yet
  std::vector<bool> has_length;
  for (int64_t row = 0; row < rows.size(); ++row) {
    const auto ids = rows.ids(row);
    if (rows.learned(row).empty()) continue;
    open.emplace(hash_of(ids), row);
    if (has_length.size() <= ids.size()) has_length.resize(ids.size() + 1);
    has_length[ids.size()] = true;
  }
  int64_t count = 0;
  for (int64_t other = 0; other < others.size() && !open.empty(); ++other) {
    const auto length = static_cast<size_t>(others.length(other));
    if (length >= has_length.size() || !has_length[length]) continue;
    const auto ids = others.ids(other);
    auto [at, end] = open.equal_range(hash_of(ids));
    while (at != end) {
      const bool is_shared =
          std::ranges::equal(rows.ids(at->second), ids) &&
          std::ranges::equal(rows.learned(at->second), others.learned(other), is_same);
      count += is_shared;
      at = is_shared ? open.erase(at) : std::next(at);
    }
  }
  return count;
}

}  // namespace fastsft
