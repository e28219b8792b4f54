#include "data/token_dataset.h"

#include <algorithm>

#include "core/error.h"
#include "storage/crc32c.h"

namespace fastsft {

void TokenDataset::append(const Example& example) { append(example.ids, example.learned); }

void TokenDataset::append(std::span<const int32_t> ids, std::span<const TokenSpan> learned) {
  int32_t previous_end = -1;
  for (const TokenSpan& span : learned) {
    require(span.begin > previous_end && span.begin < span.end &&
                span.end <= static_cast<int32_t>(ids.size()),
            "learned span [", span.begin, ", ", span.end, ") does not fit ", ids.size(),
            " tokens after position ", previous_end);
    previous_end = span.end;
  }
  for (const int32_t id : ids) max_id_ = std::max(max_id_, id);
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  spans_.insert(spans_.end(), learned.begin(), learned.end());
  token_offsets_.push_back(static_cast<int64_t>(ids_.size()));
  span_offsets_.push_back(static_cast<int64_t>(spans_.size()));
}

uint32_t TokenDataset::checksum() const {
  uint32_t sum = crc32c(std::as_bytes(std::span(ids_)));
  sum = crc32c(std::as_bytes(std::span(spans_)), sum);
  sum = crc32c(std::as_bytes(std::span(token_offsets_)), sum);
  return crc32c(std::as_bytes(std::span(span_offsets_)), sum);
}

void TokenDataset::check_row(int64_t row) const {
  require(row >= 0 && row < size(), "row ", row, " is not in a data set of ", size(), " rows");
}

std::span<const int32_t> TokenDataset::ids(int64_t row) const {
  const auto size = static_cast<size_t>(length(row));
  return {ids_.data() + token_offsets_[row], size};
}

std::span<const TokenSpan> TokenDataset::learned(int64_t row) const {
  check_row(row);
  const int64_t begin = span_offsets_[row];
  return {spans_.data() + begin, static_cast<size_t>(span_offsets_[row + 1] - begin)};
}

int64_t TokenDataset::length(int64_t row) const {
  check_row(row);
  return token_offsets_[row + 1] - token_offsets_[row];
}

int64_t TokenDataset::num_targets(int64_t row) const {
  int64_t count = 0;
  for (const TokenSpan& span : learned(row)) count += span.end - std::max(span.begin, 1);
  return count;
}

}  // namespace fastsft
