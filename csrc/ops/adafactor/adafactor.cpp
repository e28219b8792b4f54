#include "ops/adafactor/adafactor.h"

#include <torch/library.h>

#include "ops/gradient/gradient.h"
#include "ops/schema.h"

namespace fastsft {
namespace {

// Checks the row and column vectors of matrices [rows, columns]; returns the matrix count.
int64_t check_vectors(const char* op, const OptionalTensor& row, const at::Tensor& column,
                      int64_t rows, int64_t columns) {
  check_tensors(op, {{"column", column}});
  check_dtype(op, {"column", column}, at::kFloat);
  TORCH_CHECK_VALUE(rows > 0 && columns > 0, op, ": expected rows and columns, got ", rows, " and ",
                    columns);
  const int64_t matrices = row ? column.numel() / columns : 1;
  check_shape(op, {"column", column}, {matrices * columns});
  TORCH_CHECK_VALUE(row || rows == 1, op, ": a vector has one row, got ", rows);
  if (!row) return matrices;
  check_tensors(op, {{"column", column}, {"row", *row}});
  check_dtype(op, {"row", *row}, at::kFloat);
  check_shape(op, {"row", *row}, {matrices * rows});
  return matrices;
}

void check_part(const char* op, const at::Tensor& grad, const at::Tensor& scalars,
                const OptionalTensor& row, const at::Tensor& column, int64_t first, int64_t rows,
                int64_t columns) {
  check_tensors(op, {{"grad", grad}, {"scalars", scalars}, {"column", column}});
  check_shape(op, {"grad", grad}, {grad.numel()});
  check_state_dtype(op, {"grad", grad});
  check_step_scalars(op, scalars);
  const int64_t matrices = check_vectors(op, row, column, rows, columns);
  TORCH_CHECK_VALUE(first >= 0 && first + grad.numel() <= matrices * rows * columns, op,
                    ": elements from ", first, " to ", first + grad.numel(), " of a tensor with ",
                    matrices * rows * columns);
}

void check_norm(const char* op, const at::Tensor& grad, const at::Tensor& norm) {
  check_tensors(op, {{"grad", grad}, {"norm", norm}});
  check_dtype(op, {"norm", norm}, at::kDouble);
  check_shape(op, {"norm", norm}, {1});
}

}  // namespace

void adafactor_sums(const at::Tensor& grad, const at::Tensor& scalars,
                    const OptionalTensor& row_sums, const at::Tensor& column_sums, int64_t first,
                    int64_t rows, int64_t columns) {
  FASTSFT_DISPATCH(adafactor_sums, grad, scalars, row_sums, column_sums, first, rows, columns);
}

void adafactor_moments(const OptionalTensor& row_sums, const at::Tensor& column_sums,
                       const OptionalTensor& row, const at::Tensor& column,
                       const at::Tensor& scalars, int64_t rows, int64_t columns) {
  FASTSFT_DISPATCH(adafactor_moments, row_sums, column_sums, row, column, scalars, rows, columns);
}

void adafactor_norm(const at::Tensor& grad, const at::Tensor& scalars,
                    const OptionalTensor& row_factors, const at::Tensor& column_factors,
                    const at::Tensor& out, int64_t first, int64_t rows, int64_t columns) {
  FASTSFT_DISPATCH(adafactor_norm, grad, scalars, row_factors, column_factors, out, first, rows,
                   columns);
}

void adafactor_update(const at::Tensor& param, const OptionalTensor& compute_copy,
                      const at::Tensor& grad, const at::Tensor& scalars,
                      const OptionalTensor& row_factors, const at::Tensor& column_factors,
                      const at::Tensor& norm, int64_t size, double lr, double weight_decay,
                      int64_t first, int64_t rows, int64_t columns) {
  FASTSFT_DISPATCH(adafactor_update, param, compute_copy, grad, scalars, row_factors,
                   column_factors, norm, size, lr, weight_decay, first, rows, columns);
}

void check_adafactor_sums(const at::Tensor& grad, const at::Tensor& scalars,
                          const OptionalTensor& row_sums, const at::Tensor& column_sums,
                          int64_t first, int64_t rows, int64_t columns) {
  check_part("adafactor_sums", grad, scalars, row_sums, column_sums, first, rows, columns);
}

void check_adafactor_moments(const OptionalTensor& row_sums, const at::Tensor& column_sums,
                             const OptionalTensor& row, const at::Tensor& column,
                             const at::Tensor& scalars, int64_t rows, int64_t columns) {
  constexpr const char* kOp = "adafactor_moments";
  check_tensors(kOp, {{"column", column}, {"column_sums", column_sums}, {"scalars", scalars}});
  check_step_scalars(kOp, scalars);
  check_vectors(kOp, row_sums, column_sums, rows, columns);
  check_vectors(kOp, row, column, rows, columns);
  TORCH_CHECK_VALUE(row.has_value() == row_sums.has_value(), kOp,
                    ": row and row_sums are given together");
  check_shape(kOp, {"column", column}, column_sums.sizes());
}

void check_adafactor_norm(const at::Tensor& grad, const at::Tensor& scalars,
                          const OptionalTensor& row_factors, const at::Tensor& column_factors,
                          const at::Tensor& out, int64_t first, int64_t rows, int64_t columns) {
  check_part("adafactor_norm", grad, scalars, row_factors, column_factors, first, rows, columns);
  check_norm("adafactor_norm", grad, out);
}

void check_adafactor_update(const at::Tensor& param, const OptionalTensor& compute_copy,
                            const at::Tensor& grad, const at::Tensor& scalars,
                            const OptionalTensor& row_factors, const at::Tensor& column_factors,
                            const at::Tensor& norm, int64_t size, double, double, int64_t first,
                            int64_t rows, int64_t columns) {
  constexpr const char* kOp = "adafactor_update";
  check_part(kOp, grad, scalars, row_factors, column_factors, first, rows, columns);
  check_norm(kOp, grad, norm);
  check_tensors(kOp, {{"grad", grad}, {"param", param}});
  check_shape(kOp, {"param", param}, {grad.numel()});
  check_master(kOp, param, compute_copy);
  TORCH_CHECK_VALUE(size > 0, kOp, ": size is ", size, ", expected more than 0");
}

TORCH_LIBRARY_FRAGMENT(fastsft, m) {
  m.def(
      "adafactor_sums(Tensor grad, Tensor scalars, Tensor(a!)? row_sums, Tensor(b!) column_sums, "
      "int first, int rows, int columns) -> ()");
  m.def(
      "adafactor_moments(Tensor(a!)? row_sums, Tensor(b!) column_sums, Tensor(c!)? row, Tensor(d!) "
      "column, Tensor scalars, int rows, int columns) -> ()");
  m.def(
      "adafactor_norm(Tensor grad, Tensor scalars, Tensor? row_factors, Tensor column_factors, "
      "Tensor(a!) out, int first, int rows, int columns) -> ()");
  m.def(
      "adafactor_update(Tensor(a!) param, Tensor(b!)? compute_copy, Tensor grad, Tensor scalars, "
      "Tensor? row_factors, Tensor column_factors, Tensor norm, int size, float lr, float "
      "weight_decay, int first, int rows, int columns) -> ()");
}

}  // namespace fastsft
