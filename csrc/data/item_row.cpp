#include <algorithm>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "data/padded_rows.h"

namespace fastsft {
namespace {

constexpr int64_t kMostIds = std::numeric_limits<int32_t>::max();

void check_item(const Item& item, int64_t row) {
  for (size_t i = 0; i < item.ids.size(); ++i) {
    require(item.ids[i] >= 0 && item.ids[i] < kMostIds, "row ", row, ": token ", i, " has id ",
            item.ids[i], ", expected 0 or more");
    const int64_t label = item.labels[i];
    require(label == kIgnoredLabel || (label >= 0 && label < kMostIds), "row ", row, ": label ", i,
            " is ", label, ", expected ", kIgnoredLabel, " or a token id");
    if (!item.positions) continue;
    const int64_t position = (*item.positions)[i];
    require(position >= 0 && position < kMostPositions, "row ", row, ": position_ids has ",
            position, " at ", i, ", expected 0 to ", kMostPositions - 1);
  }
}

class ItemReader {
 public:
  explicit ItemReader(const Item& item) : item_(item), size_(item.ids.size()) {
    while (size_ > 0 && !is_key(size_ - 1) && !is_learned(size_ - 1)) --size_;
    // A label at position 0, which no token predicts, still counts as a label
    // (docs/spec/trainer_semantics.md, section 6), so the row's beginning is kept.
    if (size_ > 0 && is_learned(0)) return;
    while (first_ < size_ && !is_key(first_) && !is_needed(first_)) ++first_;
  }

  std::vector<int32_t> ids() const { return kept(item_.ids); }

  std::vector<TokenSpan> learned() const {
    std::vector<TokenSpan> spans;
    for (size_t i = first_; i < size_; ++i) {
      if (!is_learned(i)) continue;
      const auto at = static_cast<int32_t>(i - first_);
      if (spans.empty() || spans.back().end != at) spans.push_back({at, at});
      spans.back().end = at + 1;
    }
    return spans;
  }

  // Returns the properties that differ from a plain row; nullopt for a plain row.
  std::optional<GeneralRow> general() const {
    GeneralRow row{.has_mask = item_.has_mask, .leading = static_cast<int64_t>(first_)};
    const bool has_other_labels =
        any_of([&](size_t i) { return is_learned(i) && item_.labels[i] != item_.ids[i]; });
    if (has_other_labels) row.labels = kept(item_.labels);
    const auto is_moved = [&](size_t i) { return position(i) != static_cast<int64_t>(i - first_); };
    if (item_.positions ? any_of(is_moved) : first_ > 0) row.positions = positions();
    if (item_.mask && any_of([&](size_t i) { return !is_key(i); })) {
      for (size_t i = first_; i < size_; ++i) row.is_key.push_back(is_key(i));
    }
    if (row.labels.empty() && row.positions.empty() && row.is_key.empty()) return std::nullopt;
    return row;
  }

  RowNeeds needs() const {
    RowNeeds needs;
    size_t keys = 0;
    for (size_t i = first_; i < size_; ++i) {
      keys += is_key(i);
      if (is_needed(i)) {
        needs.masked_query |= !is_key(i);
        needs.blind_query |= keys == 0;
      }
      needs.packing |= i > 0 && !item_.has_mask && position(i) != position(i - 1) + 1;
    }
    return needs;
  }

 private:
  bool is_key(size_t i) const {
    return !item_.mask || (i < item_.mask->size() && (*item_.mask)[i] != 0);
  }
  bool is_learned(size_t i) const { return item_.labels[i] != kIgnoredLabel; }
  // Returns true if the logits of token `i` have a target.
  bool is_needed(size_t i) const { return i + 1 < size_ && is_learned(i + 1); }
  int64_t position(size_t i) const {
    return item_.positions ? (*item_.positions)[i] : static_cast<int64_t>(i);
  }

  template <typename Test>
  bool any_of(const Test& test) const {
    for (size_t i = first_; i < size_; ++i) {
      if (test(i)) return true;
    }
    return false;
  }

  std::vector<int32_t> kept(std::span<const int64_t> values) const {
    return {values.begin() + static_cast<std::ptrdiff_t>(first_),
            values.begin() + static_cast<std::ptrdiff_t>(size_)};
  }
  std::vector<int32_t> positions() const {
    if (item_.positions) return kept(*item_.positions);
    std::vector<int32_t> counted(size_ - first_);
    std::iota(counted.begin(), counted.end(), static_cast<int32_t>(first_));
    return counted;
  }

  const Item& item_;
  size_t first_ = 0, size_;
};

}  // namespace

RowNeeds append_item(TokenDataset& dataset, const Item& item, int64_t row) {
  require(item.ids.size() == item.labels.size(), "row ", row, ": ", item.ids.size(), " ids with ",
          item.labels.size(), " labels");
  require(!item.positions || item.positions->size() == item.ids.size(), "row ", row, ": ",
          item.ids.size(), " ids with ", item.positions ? item.positions->size() : 0, " positions");
  check_item(item, row);
  const ItemReader reader(item);
  if (auto general = reader.general()) {
    dataset.append(reader.ids(), reader.learned(), std::move(*general));
    return reader.needs();
  }
  dataset.append(reader.ids(), reader.learned());
  return {};
}

}  // namespace fastsft
