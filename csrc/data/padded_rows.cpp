#include "data/padded_rows.h"

#include <algorithm>

#include "core/error.h"
#include "core/start_threads.h"

namespace fastsft {
namespace {

void fill_row(const TokenDataset& dataset, int64_t row, int64_t width, int32_t pad_id,
              MaskRule mask_rule, const PaddedRows& to) {
  const auto tokens = dataset.ids(row);
  const auto size = static_cast<int64_t>(tokens.size());
  require(size <= width, "row ", row, " has ", size, " tokens and does not fit a width of ", width);
  std::copy(tokens.begin(), tokens.end(), to.ids);
  std::fill(to.ids + size, to.ids + width, pad_id);
  std::fill(to.labels, to.labels + width, kIgnoredLabel);
  const GeneralRow* general = dataset.general(row);
  const bool own_labels = general != nullptr && !general->labels.empty();
  const auto labels = own_labels ? std::span(general->labels) : tokens;
  for (const TokenSpan& span : dataset.learned(row)) {
    std::copy(labels.begin() + span.begin, labels.begin() + span.end, to.labels + span.begin);
  }
  if (mask_rule == MaskRule::kLength) {
    std::fill(to.mask, to.mask + size, true);
    std::fill(to.mask + size, to.mask + width, false);
  } else {
    std::transform(to.ids, to.ids + width, to.mask, [pad_id](int64_t id) { return id != pad_id; });
  }
  if (general == nullptr) return;
  for (size_t i = 0; i < general->is_key.size(); ++i) to.mask[i] = general->is_key[i] && to.mask[i];
}

}  // namespace

void fill_padded_rows(const TokenDataset& dataset, int64_t begin, int64_t end, int64_t width,
                      int32_t pad_id, MaskRule mask_rule, const PaddedRows& to) {
  parallel_for(static_cast<size_t>(end - begin), 0, [&](size_t first, size_t last) {
    for (size_t i = first; i < last; ++i) {
      const auto at = static_cast<int64_t>(i);
      fill_row(dataset, begin + at, width, pad_id, mask_rule,
               {to.ids + at * width, to.labels + at * width, to.mask + at * width});
    }
  });
}

}  // namespace fastsft
