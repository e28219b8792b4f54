#include "data/padded_rows.h"

#include <algorithm>

#include "core/error.h"

namespace fastsft {

void fill_padded_rows(const TokenDataset& dataset, int64_t begin, int64_t end, int64_t width,
                      int32_t pad_id, int64_t* ids, int64_t* labels) {
  for (int64_t row = begin; row < end; ++row, ids += width, labels += width) {
    const auto tokens = dataset.ids(row);
    const auto size = static_cast<int64_t>(tokens.size());
    require(size <= width, "row ", row, " has ", size, " tokens and does not fit a width of ",
            width);
    std::copy(tokens.begin(), tokens.end(), ids);
    std::fill(ids + size, ids + width, pad_id);
    std::fill(labels, labels + width, kIgnoredLabel);
    for (const TokenSpan& span : dataset.learned(row)) {
      std::copy(tokens.begin() + span.begin, tokens.begin() + span.end, labels + span.begin);
    }
  }
}

}  // namespace fastsft
