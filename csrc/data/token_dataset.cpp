#include "data/token_dataset.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/error.h"
#include "storage/crc32c.h"

namespace fastsft {
namespace {

// Adds a list's length and bytes to a checksum. The length keeps two lists from being confused with
// their concatenation.
template <typename Value>
uint32_t add_list(const std::vector<Value>& values, uint32_t sum) {
  const auto size = static_cast<int64_t>(values.size());
  sum = crc32c(std::as_bytes(std::span(&size, 1)), sum);
  return crc32c(std::as_bytes(std::span(values)), sum);
}

}  // namespace

TokenDataset::TokenDataset() { append_offsets(); }

TokenDataset::TokenDataset(std::shared_ptr<const MappedFile> file, const TokenArrays& arrays,
                           int32_t max_id, uint32_t checksum)
    : max_id_(max_id), mapped_checksum_(checksum), file_(std::move(file)), arrays_(arrays) {}

void check_learned(std::span<const TokenSpan> learned, int64_t length) {
  int32_t previous_end = -1;
  for (const TokenSpan& span : learned) {
    require(span.begin > previous_end && span.begin < span.end && span.end <= length,
            "learned span [", span.begin, ", ", span.end, ") does not fit ", length,
            " tokens after position ", previous_end);
    previous_end = span.end;
  }
}

void TokenDataset::append(const Example& example) { append(example.ids, example.learned); }

void TokenDataset::append(std::span<const int32_t> ids, std::span<const TokenSpan> learned) {
  FASTSFT_ASSERT(!is_mapped(), "rows are appended to a mapped data set");
  check_learned(learned, static_cast<int64_t>(ids.size()));
  for (const int32_t id : ids) max_id_ = std::max(max_id_, id);
  ids_.append(ids);
  spans_.append(learned);
  append_offsets();
}

void TokenDataset::append_offsets() {
  token_offsets_.push_back(static_cast<int64_t>(ids_.size()));
  span_offsets_.push_back(static_cast<int64_t>(spans_.size()));
  arrays_ = {ids_.values(), spans_.values(), token_offsets_.values(), span_offsets_.values()};
}

void TokenDataset::append(std::span<const int32_t> ids, std::span<const TokenSpan> learned,
                          GeneralRow general) {
  for (const size_t size :
       {general.labels.size(), general.positions.size(), general.is_key.size()}) {
    require(size == 0 || size == ids.size(), "a row of ", ids.size(), " ids has ", size,
            " labels, positions or keys");
  }
  append(ids, learned);
  for (const int32_t label : general.labels) max_id_ = std::max(max_id_, label);
  general_.emplace(size() - 1, std::move(general));
}

uint32_t TokenDataset::checksum() const {
  if (is_mapped()) return mapped_checksum_;
  uint32_t sum = crc32c(std::as_bytes(arrays_.ids));
  sum = crc32c(std::as_bytes(arrays_.spans), sum);
  sum = crc32c(std::as_bytes(arrays_.token_offsets), sum);
  sum = crc32c(std::as_bytes(arrays_.span_offsets), sum);
  for (const auto& [row, general] : general_) {
    sum = add_list(std::vector<int64_t>{row, general.has_mask, general.leading}, sum);
    sum = add_list(general.labels, sum);
    sum = add_list(general.positions, sum);
    sum = add_list(general.is_key, sum);
  }
  return sum;
}

void TokenDataset::check_row(int64_t row) const {
  require(row >= 0 && row < size(), "row ", row, " is not in a data set of ", size(), " rows");
}

std::span<const int32_t> TokenDataset::ids(int64_t row) const {
  const auto size = static_cast<size_t>(length(row));
  return {arrays_.ids.data() + arrays_.token_offsets[row], size};
}

std::span<const TokenSpan> TokenDataset::learned(int64_t row) const {
  check_row(row);
  const int64_t begin = arrays_.span_offsets[row];
  return {arrays_.spans.data() + begin, static_cast<size_t>(arrays_.span_offsets[row + 1] - begin)};
}

int64_t TokenDataset::length(int64_t row) const {
  check_row(row);
  return arrays_.token_offsets[row + 1] - arrays_.token_offsets[row];
}

int64_t TokenDataset::num_targets(int64_t row) const {
  int64_t count = 0;
  for (const TokenSpan& span : learned(row)) count += span.end - std::max(span.begin, 1);
  return count;
}

int64_t TokenDataset::num_labels(int64_t row) const {
  int64_t count = 0;
  for (const TokenSpan& span : learned(row)) count += span.end - span.begin;
  return count;
}

const GeneralRow* TokenDataset::general(int64_t row) const {
  check_row(row);
  const auto found = general_.find(row);
  return found == general_.end() ? nullptr : &found->second;
}

int64_t TokenDataset::num_packed() const {
  return std::count_if(general_.begin(), general_.end(), [](const auto& entry) {
    const auto& positions = entry.second.positions;
    const auto jumps = [](int32_t before, int32_t next) { return next != before + 1; };
    return !entry.second.has_mask &&
           std::adjacent_find(positions.begin(), positions.end(), jumps) != positions.end();
  });
}

std::vector<int32_t> TokenDataset::labels(int64_t row) const {
  const GeneralRow* general = this->general(row);
  const bool own = general != nullptr && !general->labels.empty();
  const std::span<const int32_t> values = own ? std::span(general->labels) : ids(row);
  std::vector<int32_t> labels(values.size(), kIgnoredLabel);
  for (const TokenSpan& span : learned(row)) {
    std::copy(values.begin() + span.begin, values.begin() + span.end, labels.begin() + span.begin);
  }
  return labels;
}

std::optional<MisplacedRow> first_misplaced(const TokenDataset& dataset, bool targets_only) {
  static const GeneralRow kPlain;
  for (int64_t row = 0; row < dataset.size(); ++row) {
    if (dataset.length(row) == 0 || (targets_only && dataset.num_targets(row) == 0)) continue;
    const GeneralRow* found = dataset.general(row);
    const GeneralRow& general = found == nullptr ? kPlain : *found;
    int32_t expected = 0;
    for (const int32_t position : general.positions) {
      if (position != expected++) return MisplacedRow{row, false};
    }
    const bool is_masked = !general.is_key.empty() && general.is_key.front() == 0;
    if (is_masked || dataset.ids(row).front() == dataset.masked_id()) {
      return MisplacedRow{row, true};
    }
  }
  return std::nullopt;
}

namespace {

// Hashes the length and the last ids. The first ids are the same in most rows, because a chat
// template writes them.
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
  std::unordered_multimap<size_t, int64_t> open;  // entries of `rows` not found in `others` yet
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
