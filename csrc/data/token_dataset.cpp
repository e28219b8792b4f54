#include "data/token_dataset.h"

#include <algorithm>

#include "core/error.h"
#include "storage/crc32c.h"

namespace fastsft {

TokenDataset::TokenDataset()
    : token_offsets_{0}, span_offsets_{0}, arrays_{ids_, spans_, token_offsets_, span_offsets_} {}

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
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  spans_.insert(spans_.end(), learned.begin(), learned.end());
  token_offsets_.push_back(static_cast<int64_t>(ids_.size()));
  span_offsets_.push_back(static_cast<int64_t>(spans_.size()));
  arrays_ = {ids_, spans_, token_offsets_, span_offsets_};
}

uint32_t TokenDataset::checksum() const {
  if (is_mapped()) return mapped_checksum_;
  uint32_t sum = crc32c(std::as_bytes(arrays_.ids));
  sum = crc32c(std::as_bytes(arrays_.spans), sum);
  sum = crc32c(std::as_bytes(arrays_.token_offsets), sum);
  return crc32c(std::as_bytes(arrays_.span_offsets), sum);
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

}  // namespace fastsft
