#include "data/row_places.h"

namespace fastsft {
namespace {

bool has_own_positions(const GeneralRow* general) {
  if (general == nullptr) return false;
  int32_t expected = 0;
  for (const int32_t position : general->positions) {
    if (position != expected++) return true;
  }
  return false;
}

bool begins_masked(const TokenDataset& dataset, int64_t row, const GeneralRow* general) {
  if (dataset.ids(row).front() == dataset.masked_id()) return true;
  return general != nullptr && !general->is_key.empty() && general->is_key.front() == 0;
}

}  // namespace

std::optional<MisplacedRow> first_misplaced(const TokenDataset& dataset, bool targets_only) {
  for (int64_t row = 0; row < dataset.size(); ++row) {
    if (dataset.length(row) == 0 || (targets_only && dataset.num_targets(row) == 0)) continue;
    const GeneralRow* general = dataset.general(row);
    if (has_own_positions(general)) return MisplacedRow{row, false};
    if (begins_masked(dataset, row, general)) return MisplacedRow{row, true};
  }
  return std::nullopt;
}

}  // namespace fastsft
