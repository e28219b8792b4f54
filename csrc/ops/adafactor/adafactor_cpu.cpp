#include "ops/adafactor/adafactor.h"

#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "ops/cpu/flat_kernels.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/simd.h"
#include "ops/gradient/step_scalars.h"
#include "ops/master/master_piece.h"

namespace fastsft {
namespace {

using cpu::MasterPiece;
constexpr int64_t kFactoredPiece = MasterPiece::kSize;

float grad_scale_of(const at::Tensor& scalars) {
  return static_cast<float>(scalars.data_ptr<double>()[kStepGradScale]);
}

// A few gradients in float32. bfloat16 gradients are copied, float32 gradients are not.
class FactoredGradients {
 public:
  FactoredGradients(const at::Tensor& grad, int64_t begin, int64_t size) {
    values_ = room_.data();
    if (grad.scalar_type() == at::kFloat)
      values_ = grad.data_ptr<float>() + begin;
    else
      cpu::widen_range(grad.data_ptr<c10::BFloat16>() + begin, room_.data(), size);
  }
  const float* values() const { return values_; }

 private:
  std::array<float, kFactoredPiece> room_;
  const float* values_;
};

FASTSFT_CLONES double sum_of_row(const float* grad, int64_t count, float scale) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) {
    const float g = grad[i] * scale;
    sum += static_cast<double>(g * g + kAdafactorEps);
  }
  return sum;
}

FASTSFT_CLONES void add_squares(const float* grad, int64_t count, float scale, double* sums) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float g = grad[i] * scale;
    sums[i] += static_cast<double>(g * g + kAdafactorEps);
  }
}

FASTSFT_CLONES double sum_of_updates(const float* grad, const float* factors, int64_t count,
                                     float row_factor, float scale) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) {
    const float u = row_factor * factors[i] * (grad[i] * scale);
    sum += static_cast<double>(u) * static_cast<double>(u);
  }
  return sum;
}

FASTSFT_CLONES void update_row(float* param, const float* grad, const float* factors, int64_t count,
                               float row_factor, float scale, float step_size, float decay) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float u = row_factor * factors[i] * (grad[i] * scale);
    param[i] = param[i] - decay * param[i] - step_size * u;
  }
}

// A tensor's elements [first, first + count), row by row. Rows have `columns` elements and are
// numbered across all matrices.
struct RowPieces {
  int64_t first, count, columns;

  int64_t begin_row() const { return first / columns; }
  int64_t end_row() const { return count == 0 ? begin_row() : (first + count - 1) / columns + 1; }
  // The columns of `row` that belong to the elements, and their first element's position.
  int64_t begin_column(int64_t row) const { return std::max<int64_t>(0, first - row * columns); }
  int64_t end_column(int64_t row) const { return std::min(columns, first + count - row * columns); }
  int64_t place(int64_t row) const { return row * columns + begin_column(row) - first; }
};

// Calls work(column, place, size) for each piece of a row; `place` is the piece's position in the
// range.
template <typename Work>
void for_row(const RowPieces& pieces, int64_t row, const Work& work) {
  const int64_t end = pieces.end_column(row), first = pieces.begin_column(row);
  for (int64_t column = first; column < end; column += kFactoredPiece) {
    work(column, pieces.place(row) + column - first, std::min(kFactoredPiece, end - column));
  }
}

void add_row_sums(const at::Tensor& grad, const RowPieces& pieces, float scale, float* sums) {
  at::parallel_for(pieces.begin_row(), pieces.end_row(), cpu::rows_per_task(pieces.columns),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t row = begin; row < end; ++row) {
                       double sum = 0;
                       for_row(pieces, row, [&](int64_t, int64_t place, int64_t size) {
                         sum +=
                             sum_of_row(FactoredGradients(grad, place, size).values(), size, scale);
                       });
                       sums[row] += static_cast<float>(sum);
                     }
                   });
}

// Adds one matrix's squared gradients in rows [from, to) to the sums of columns [begin, end).
void add_columns(const at::Tensor& grad, const RowPieces& pieces, float scale, int64_t begin,
                 int64_t end, int64_t from, int64_t to, float* sums) {
  std::array<double, kFactoredPiece> totals{};
  for (int64_t row = from; row < to; ++row) {
    const int64_t first = std::max(begin, pieces.begin_column(row));
    const int64_t size = std::min(end, pieces.end_column(row)) - first;
    if (size <= 0) continue;
    const FactoredGradients part(grad, row * pieces.columns + first - pieces.first, size);
    add_squares(part.values(), size, scale, totals.data() + (first - begin));
  }
  for (int64_t column = begin; column < end; ++column) {
    sums[column] += static_cast<float>(totals[static_cast<size_t>(column - begin)]);
  }
}

// Parallelises over columns, so the sums do not depend on the thread count.
void add_column_sums(const at::Tensor& grad, const RowPieces& pieces, float scale, int64_t rows,
                     float* sums) {
  constexpr int64_t kColumns = 256;
  for (int64_t matrix = pieces.begin_row() / rows; matrix * rows < pieces.end_row(); ++matrix) {
    const int64_t from = std::max(pieces.begin_row(), matrix * rows);
    const int64_t to = std::min(pieces.end_row(), (matrix + 1) * rows);
    const int64_t tasks = (pieces.columns + kColumns - 1) / kColumns;
    at::parallel_for(0, tasks, 1, [&](int64_t first, int64_t last) {
      for (int64_t task = first; task < last; ++task) {
        const int64_t end = std::min(pieces.columns, (task + 1) * kColumns);
        add_columns(grad, pieces, scale, task * kColumns, end, from, to,
                    sums + matrix * pieces.columns);
      }
    });
  }
}

void adafactor_sums_cpu(const at::Tensor& grad, const at::Tensor& scalars,
                        const OptionalTensor& row_sums, const at::Tensor& column_sums,
                        int64_t first, int64_t rows, int64_t columns) {
  check_adafactor_sums(grad, scalars, row_sums, column_sums, first, rows, columns);
  const RowPieces pieces{first, grad.numel(), columns};
  const float scale = grad_scale_of(scalars);
  if (row_sums) add_row_sums(grad, pieces, scale, row_sums->data_ptr<float>());
  add_column_sums(grad, pieces, scale, rows, column_sums.data_ptr<float>());
}

// Sets value = beta value + (1 - beta) sum / count for each element; returns the sum of the new
// values.
double average_sums(float* values, const float* sums, int64_t size, double beta, int64_t count) {
  const auto kept = static_cast<float>(beta), added = static_cast<float>(1.0 - beta);
  double total = 0;
  for (int64_t i = 0; i < size; ++i) {
    values[i] = values[i] * kept + added * (sums[i] / static_cast<float>(count));
    total += static_cast<double>(values[i]);
  }
  return total;
}

void write_factors(const float* values, float* factors, int64_t size, float mean) {
  for (int64_t i = 0; i < size; ++i) factors[i] = 1.0f / std::sqrt(values[i] / mean);
}

void adafactor_moments_cpu(const OptionalTensor& row_sums, const at::Tensor& column_sums,
                           const OptionalTensor& row, const at::Tensor& column,
                           const at::Tensor& scalars, int64_t rows, int64_t columns) {
  check_adafactor_moments(row_sums, column_sums, row, column, scalars, rows, columns);
  if (!std::isfinite(grad_scale_of(scalars))) return;
  const double beta = 1.0 - std::pow(scalars.data_ptr<double>()[kStepNumber], kAdafactorDecay);
  for (int64_t matrix = 0; matrix < column.numel() / columns; ++matrix) {
    float* values = column.data_ptr<float>() + matrix * columns;
    float* sums = column_sums.data_ptr<float>() + matrix * columns;
    average_sums(values, sums, columns, beta, rows);
    write_factors(values, sums, columns, 1.0f);
    if (!row) continue;
    values = row->data_ptr<float>() + matrix * rows;
    sums = row_sums->data_ptr<float>() + matrix * rows;
    const double total = average_sums(values, sums, rows, beta, columns);
    write_factors(values, sums, rows, static_cast<float>(total / static_cast<double>(rows)));
  }
}

// A tensor's row and column factors.
struct Factors {
  const float* rows;
  const float* columns;
  int64_t rows_of_matrix, columns_of_matrix;

  Factors(const OptionalTensor& row, const at::Tensor& column, int64_t rows, int64_t columns)
      : rows(row ? row->data_ptr<float>() : nullptr),
        columns(column.data_ptr<float>()),
        rows_of_matrix(rows),
        columns_of_matrix(columns) {}
  float of_row(int64_t row) const { return rows ? rows[row] : 1.0f; }
  const float* of_columns(int64_t row) const {
    return columns + row / rows_of_matrix * columns_of_matrix;
  }
};

void adafactor_norm_cpu(const at::Tensor& grad, const at::Tensor& scalars,
                        const OptionalTensor& row_factors, const at::Tensor& column_factors,
                        const at::Tensor& out, int64_t first, int64_t rows, int64_t columns) {
  check_adafactor_norm(grad, scalars, row_factors, column_factors, out, first, rows, columns);
  const RowPieces pieces{first, grad.numel(), columns};
  const Factors factors(row_factors, column_factors, rows, columns);
  const float scale = grad_scale_of(scalars);
  const int64_t begin_row = pieces.begin_row();
  std::vector<double> sums(static_cast<size_t>(pieces.end_row() - begin_row));
  at::parallel_for(
      begin_row, pieces.end_row(), cpu::rows_per_task(columns), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          for_row(pieces, row, [&](int64_t column, int64_t place, int64_t size) {
            sums[static_cast<size_t>(row - begin_row)] +=
                sum_of_updates(FactoredGradients(grad, place, size).values(),
                               factors.of_columns(row) + column, size, factors.of_row(row), scale);
          });
        }
      });
  for (double sum : sums) *out.data_ptr<double>() += sum;
}

void adafactor_update_cpu(const at::Tensor& param, const OptionalTensor& compute_copy,
                          const at::Tensor& grad, const at::Tensor& scalars,
                          const OptionalTensor& row_factors, const at::Tensor& column_factors,
                          const at::Tensor& norm, int64_t size, double lr, double weight_decay,
                          int64_t first, int64_t rows, int64_t columns) {
  check_adafactor_update(param, compute_copy, grad, scalars, row_factors, column_factors, norm,
                         size, lr, weight_decay, first, rows, columns);
  const float scale = grad_scale_of(scalars);
  if (!std::isfinite(scale)) return;
  const RowPieces pieces{first, grad.numel(), columns};
  const Factors factors(row_factors, column_factors, rows, columns);
  const double rms = std::sqrt(*norm.data_ptr<double>() / static_cast<double>(size));
  const auto step_size = static_cast<float>(lr / std::max(1.0, rms));
  const auto decay = static_cast<float>(lr * weight_decay);
  const auto update = [&](int64_t row, int64_t column, int64_t place, int64_t count) {
    MasterPiece master(param, compute_copy, place, count);
    update_row(master.values(), FactoredGradients(grad, place, count).values(),
               factors.of_columns(row) + column, count, factors.of_row(row), scale, step_size,
               decay);
    master.write();
  };
  at::parallel_for(pieces.begin_row(), pieces.end_row(), cpu::rows_per_task(columns),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t row = begin; row < end; ++row) {
                       for_row(pieces, row, [&](int64_t column, int64_t place, int64_t count) {
                         update(row, column, place, count);
                       });
                     }
                   });
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) {
  m.impl("adafactor_sums", &adafactor_sums_cpu);
  m.impl("adafactor_moments", &adafactor_moments_cpu);
  m.impl("adafactor_norm", &adafactor_norm_cpu);
  m.impl("adafactor_update", &adafactor_update_cpu);
}

}  // namespace fastsft
