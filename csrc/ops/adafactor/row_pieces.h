#pragma once

#include <algorithm>
#include <cstdint>

namespace fastsft {

// Elements [first, first + count) of matrices of `columns` columns, row by row. Rows are counted
// over all matrices.
struct RowPieces {
  int64_t first, count, columns;

  int64_t begin_row() const { return first / columns; }
  int64_t end_row() const { return count == 0 ? begin_row() : (first + count - 1) / columns + 1; }
  // Columns [begin, end) of `row` that are there, and where the first of them is in the piece.
  int64_t begin_column(int64_t row) const { return std::max<int64_t>(0, first - row * columns); }
  int64_t end_column(int64_t row) const { return std::min(columns, first + count - row * columns); }
  int64_t place(int64_t row) const { return row * columns + begin_column(row) - first; }
};

}  // namespace fastsft
