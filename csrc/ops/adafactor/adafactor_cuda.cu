#include <algorithm>

#include "ops/adafactor/adafactor_launch.h"
#include "ops/cuda/column_sums.h"
#include "ops/cuda/pack.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/gradient/step_scalars.h"
#include "ops/master/master_access.cuh"

namespace fastsft::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kWideThreads = 1024;
constexpr int64_t kMaxBlocks = 4096;
constexpr float kEps = 1e-30f;

// The rows of an AdafactorPart; a device-side counterpart of RowPieces.
struct Rows {
  int64_t first, count, columns;
  __device__ int64_t begin_row() const { return first / columns; }
  __device__ int64_t end_row() const { return (first + count - 1) / columns + 1; }
  __device__ int64_t begin(int64_t row) const { return max(int64_t{0}, first - row * columns); }
  __device__ int64_t end(int64_t row) const { return min(columns, first + count - row * columns); }
};

// Returns the squared gradient plus the epsilon that both averages use.
__device__ inline float square(float grad, float scale) {
  const float g = grad * scale;
  return g * g + kEps;
}

// Sums one row per warp.
template <typename Grad>
__global__ void __launch_bounds__(kThreads)
    row_sums_kernel(const Grad* grad, Rows rows, const double* scalars, float* sums) {
  const auto scale = static_cast<float>(scalars[kStepGradScale]);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t row =
           rows.begin_row() + static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
       row < rows.end_row(); row += step) {
    const Grad* from = grad + (row * rows.columns - rows.first);
    float sum = 0;
    for (int64_t i = rows.begin(row) + threadIdx.x % 32; i < rows.end(row); i += 32) {
      sum += square(to_float(from[i]), scale);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) sums[row] += sum;
  }
}

// Sums columns: block (x, y) sums one column tile over one row chunk.
template <typename Grad>
__global__ void __launch_bounds__(kThreads)
    column_parts_kernel(const Grad* grad, Rows rows, const double* scalars, int64_t first_row,
                        int64_t end_row, float* parts) {
  const auto scale = static_cast<float>(scalars[kStepGradScale]);
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= rows.columns) return;
  const int64_t count = (end_row - first_row + gridDim.y - 1) / gridDim.y;
  const int64_t begin = first_row + blockIdx.y * count, end = min(end_row, begin + count);
  float sum = 0;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * rows.columns + column - rows.first;
    if (at >= 0 && at < rows.count) sum += square(to_float(grad[at]), scale);
  }
  parts[blockIdx.y * rows.columns + column] = sum;
}

// Sets value = beta value + (1 - beta) sum / count; returns this thread's share of the sum of the
// new values.
__device__ double average(float* values, const float* sums, int64_t size, double beta,
                          int64_t count) {
  const auto kept = static_cast<float>(beta), added = static_cast<float>(1.0 - beta);
  const auto divisor = static_cast<float>(count);
  double total = 0;
  for (int64_t i = threadIdx.x; i < size; i += kWideThreads) {
    values[i] = values[i] * kept + added * (sums[i] / divisor);
    total += static_cast<double>(values[i]);
  }
  return total;
}

__device__ void write_factors(const float* values, float* factors, int64_t size, float mean) {
  for (int64_t i = threadIdx.x; i < size; i += kWideThreads) {
    factors[i] = 1.0f / sqrtf(values[i] / mean);
  }
}

// Updates the averages and writes the factors, one matrix per block.
__global__ void __launch_bounds__(kWideThreads) moments_kernel(AdafactorMomentsArgs m) {
  if (!isfinite(static_cast<float>(m.scalars[kStepGradScale]))) return;
  const double beta = 1.0 - pow(m.scalars[kStepNumber], -0.8);
  const int64_t matrix = blockIdx.x;
  float *column = m.column + matrix * m.columns, *sums = m.column_sums + matrix * m.columns;
  average(column, sums, m.columns, beta, m.rows);
  write_factors(column, sums, m.columns, 1.0f);
  if (m.row == nullptr) return;
  float *row = m.row + matrix * m.rows, *row_sums = m.row_sums + matrix * m.rows;
  const double total = block_sum(average(row, row_sums, m.rows, beta, m.columns));
  write_factors(row, row_sums, m.rows, static_cast<float>(total / static_cast<double>(m.rows)));
}

struct Factors {
  const float *rows, *columns;
  int64_t rows_of_matrix, columns_of_matrix;
  __device__ float of_row(int64_t row) const { return rows ? rows[row] : 1.0f; }
  __device__ const float* of_columns(int64_t row) const {
    return columns + row / rows_of_matrix * columns_of_matrix;
  }
};

template <typename Grad>
__global__ void __launch_bounds__(kThreads)
    update_norm_kernel(const Grad* grad, Rows rows, const double* scalars, Factors factors,
                       double* parts) {
  const auto scale = static_cast<float>(scalars[kStepGradScale]);
  double sum = 0;
  for (int64_t row =
           rows.begin_row() + static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
       row < rows.end_row(); row += kAdafactorBlocks * kWarps) {
    const Grad* from = grad + (row * rows.columns - rows.first);
    const float row_factor = factors.of_row(row);
    const float* columns = factors.of_columns(row);
    for (int64_t i = rows.begin(row) + threadIdx.x % 32; i < rows.end(row); i += 32) {
      const float u = row_factor * columns[i] * (to_float(from[i]) * scale);
      sum += static_cast<double>(u) * u;
    }
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads) add_parts_kernel(const double* parts, double* out) {
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < kAdafactorBlocks; i += kThreads) sum += parts[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *out += sum;
}

// Updates one row; runs on one warp.
template <typename Master, typename Grad>
__device__ void update_row(const AdafactorUpdateArgs& args, const Rows& rows,
                           const Factors& factors, int64_t row, float scale, float step_size,
                           float decay) {
  const int64_t offset = row * rows.columns - rows.first;
  const Grad* grad = static_cast<const Grad*>(args.part.grad) + offset;
  const MasterPlace<Master> first(args.master, offset);
  const float row_factor = factors.of_row(row);
  const float* columns = factors.of_columns(row);
  for (int64_t i = rows.begin(row) + threadIdx.x % 32; i < rows.end(row); i += 32) {
    const MasterPlace<Master> master = first.after(i);
    float param;
    master.template load<1>(&param);
    const float u = row_factor * columns[i] * (to_float(grad[i]) * scale);
    param = param - decay * param - step_size * u;
    master.template store<1>(&param);
  }
}

template <typename Master, typename Grad>
__global__ void __launch_bounds__(kThreads)
    update_kernel(AdafactorUpdateArgs args, Rows rows, Factors factors) {
  const auto scale = static_cast<float>(args.part.scalars[kStepGradScale]);
  if (!isfinite(scale)) return;
  const double rms = sqrt(*args.norm / static_cast<double>(args.size));
  const auto step_size = static_cast<float>(args.lr / fmax(1.0, rms));
  const auto decay = static_cast<float>(args.lr * args.weight_decay);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t row =
           rows.begin_row() + static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
       row < rows.end_row(); row += step) {
    update_row<Master, Grad>(args, rows, factors, row, scale, step_size, decay);
  }
}

Rows rows_of(const AdafactorPart& part) { return {part.first, part.count, part.columns}; }

// Returns the block count for a non-empty part, with one warp per row.
unsigned blocks_of(const AdafactorPart& part) {
  const int64_t end = (part.first + part.count - 1) / part.columns + 1;
  const int64_t rows = end - part.first / part.columns;
  return static_cast<unsigned>(std::min(kMaxBlocks, (rows + kWarps - 1) / kWarps));
}

template <typename Grad>
void launch_sums(const AdafactorPart& part, float* row_sums, float* column_sums, float* parts,
                 cudaStream_t stream) {
  const auto* grad = static_cast<const Grad*>(part.grad);
  const Rows rows = rows_of(part);
  if (row_sums != nullptr) {
    row_sums_kernel<Grad>
        <<<blocks_of(part), kThreads, 0, stream>>>(grad, rows, part.scalars, row_sums);
  }
  const int64_t end = (part.first + part.count - 1) / part.columns + 1;
  const auto tiles = static_cast<unsigned>((part.columns + kThreads - 1) / kThreads);
  for (int64_t matrix = part.first / part.columns / part.rows; matrix * part.rows < end; ++matrix) {
    const int64_t from = std::max(part.first / part.columns, matrix * part.rows);
    const int64_t to = std::min(end, (matrix + 1) * part.rows);
    const int64_t chunks = adafactor_chunks(to - from);
    column_parts_kernel<Grad><<<dim3(tiles, static_cast<unsigned>(chunks)), kThreads, 0, stream>>>(
        grad, rows, part.scalars, from, to, parts);
    launch_column_sums(parts, chunks, part.columns, 1.0f, column_sums + matrix * part.columns,
                       stream);
  }
}

}  // namespace

void launch_adafactor_sums(const AdafactorPart& part, float* row_sums, float* column_sums,
                           float* parts, cudaStream_t stream) {
  if (part.count == 0) return;
  if (part.dtype == Dtype::kFloat)
    launch_sums<float>(part, row_sums, column_sums, parts, stream);
  else
    launch_sums<bfloat16>(part, row_sums, column_sums, parts, stream);
}

void launch_adafactor_moments(const AdafactorMomentsArgs& moments, cudaStream_t stream) {
  moments_kernel<<<static_cast<unsigned>(moments.matrices), kWideThreads, 0, stream>>>(moments);
}

void launch_adafactor_norm(const AdafactorPart& part, const float* row_factors,
                           const float* column_factors, double* parts, double* out,
                           cudaStream_t stream) {
  if (part.count == 0) return;
  const Factors factors{row_factors, column_factors, part.rows, part.columns};
  if (part.dtype == Dtype::kFloat)
    update_norm_kernel<float><<<kAdafactorBlocks, kThreads, 0, stream>>>(
        static_cast<const float*>(part.grad), rows_of(part), part.scalars, factors, parts);
  else
    update_norm_kernel<bfloat16><<<kAdafactorBlocks, kThreads, 0, stream>>>(
        static_cast<const bfloat16*>(part.grad), rows_of(part), part.scalars, factors, parts);
  add_parts_kernel<<<1, kThreads, 0, stream>>>(parts, out);
}

void launch_adafactor_update(const AdafactorUpdateArgs& args, cudaStream_t stream) {
  if (args.part.count == 0) return;
  const Factors factors{args.row_factors, args.column_factors, args.part.rows, args.part.columns};
  const Rows rows = rows_of(args.part);
  const unsigned blocks = blocks_of(args.part);
  with_master_value(args.master, [&](auto value) {
    using Master = decltype(value);
    if (args.part.dtype == Dtype::kFloat)
      update_kernel<Master, float><<<blocks, kThreads, 0, stream>>>(args, rows, factors);
    else
      update_kernel<Master, bfloat16><<<blocks, kThreads, 0, stream>>>(args, rows, factors);
  });
}

}  // namespace fastsft::cuda
