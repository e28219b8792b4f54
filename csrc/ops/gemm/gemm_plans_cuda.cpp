#include "ops/gemm/gemm_plans.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>

#include "core/error.h"
#include "ops/cuda/arguments.h"
#include "ops/gemm/gemm_key.h"
#include "ops/gemm/tuned_gemms.h"

namespace fastsft::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // cuBLAS's recommendation for Hopper
constexpr int kCandidates = 8;
constexpr size_t kMaxPlans = 8192;  // token counts differ from batch to batch

// All objects below are leaked, because the CUDA driver may be unloaded before static objects are
// destroyed.
std::mutex& mutex() {
  static auto* const instance = new std::mutex;
  return *instance;
}

using Plans = std::unordered_map<GemmKey, std::shared_ptr<GemmPlan>, GemmKeyHash>;
Plans& plans() {
  static auto* const instance = new Plans;
  return *instance;
}

cublasLtHandle_t lt_handle(int device) {
  static auto* const handles = new std::map<int, cublasLtHandle_t>;
  cublasLtHandle_t& handle = (*handles)[device];
  if (handle == nullptr) {
    const cublasStatus_t status = cublasLtCreate(&handle);
    if (status != CUBLAS_STATUS_SUCCESS)
      throw_runtime("gemm: cublasLtCreate failed: ", cublasLtGetStatusString(status));
  }
  return handle;
}

// Returns a stream's workspace. Products on different streams may run at the same time.
void* workspace(const c10::cuda::CUDAStream& stream) {
  static auto* const buffers =
      new std::map<c10::Stream, at::Tensor, bool (*)(c10::Stream, c10::Stream)>(
          [](c10::Stream a, c10::Stream b) {
            return std::pair(a.device_index(), a.id()) < std::pair(b.device_index(), b.id());
          });
  at::Tensor& buffer = (*buffers)[stream.unwrap()];
  if (!buffer.defined()) {
    buffer = at::empty({static_cast<int64_t>(kWorkspaceBytes)},
                       at::TensorOptions().dtype(at::kByte).device(stream.device()));
  }
  return buffer.data_ptr();
}

void take_tuned(GemmPlan& plan, const GemmKey& key) {
  const auto entry = TunedGemms::instance().near(key);
  if (!entry) return;
  cublasLtMatmulAlgo_t algorithm{};
  static_assert(sizeof algorithm.data == sizeof entry->algorithm);
  std::memcpy(algorithm.data, entry->algorithm.data(), sizeof algorithm.data);
  plan.tuned = plan.product.takes(lt_handle(key.device), kWorkspaceBytes, algorithm);
  if (plan.tuned) plan.algorithm = algorithm;
}

std::shared_ptr<GemmPlan> find_or_make(const GemmKey& key, const GemmOperands& operands = {}) {
  static uint64_t generation = 0;
  if (generation != TunedGemms::instance().generation()) {
    plans().clear();
    generation = TunedGemms::instance().generation();
  }
  if (const auto found = plans().find(key); found != plans().end()) return found->second;
  auto plan = std::make_shared<GemmPlan>(GemmPlan{LtProduct(key), {}});
  plan->product.set_scales(operands);
  plan->candidates = plan->product.propose(lt_handle(key.device), kWorkspaceBytes, kCandidates);
  if (!plan->candidates.empty()) {
    plan->algorithm = plan->candidates.front();
    take_tuned(*plan, key);
  }
  if (plans().size() >= kMaxPlans) {
    // Evicts untuned plans only; tuned ones cannot be rebuilt without measuring again.
    std::erase_if(plans(), [](const auto& entry) { return !entry.second->chosen; });
  }
  plans().emplace(key, plan);
  return plan;
}

}  // namespace

std::shared_ptr<const GemmPlan> gemm_plan(const GemmKey& key, const GemmOperands& operands) {
  const std::lock_guard lock(mutex());
  return find_or_make(key, operands);
}

void choose_gemm_candidate(const GemmKey& key, size_t index) {
  const std::lock_guard lock(mutex());
  const auto plan = find_or_make(key);
  FASTSFT_ASSERT(index < plan->candidates.size(), "candidate ", index);
  plans()[key] = std::make_shared<GemmPlan>(GemmPlan{
      LtProduct(key), plan->candidates, plan->candidates[index], plan->tuned, /*chosen=*/true});
}

void drop_tuned(const GemmKey& key) {
  const std::lock_guard lock(mutex());
  const auto plan = find_or_make(key);
  plans()[key] = std::make_shared<GemmPlan>(
      GemmPlan{LtProduct(key), plan->candidates, plan->candidates.front()});
}

void run_gemm(const GemmPlan& plan, const GemmKey& key, const cublasLtMatmulAlgo_t& algorithm,
              const GemmOperands& operands) {
  const auto device = static_cast<c10::DeviceIndex>(key.device);
  const auto stream = c10::cuda::getCurrentCUDAStream(device);
  const std::lock_guard lock(mutex());
  plan.product.run(lt_handle(key.device), algorithm, operands, workspace(stream), kWorkspaceBytes,
                   stream);
}

namespace {

bool rows_are_separate(const at::Tensor& matrix) {
  return (matrix.size(0) <= 1 || matrix.stride(0) >= matrix.size(1)) &&
         (matrix.size(1) <= 1 || matrix.stride(1) == 1);
}

// Returns the row stride, but at least a row's length. The stride of a single row is arbitrary, and
// libraries reject values that are too small.
int64_t leading_dimension(const at::Tensor& matrix) {
  return std::max(matrix.size(0) > 1 ? matrix.stride(0) : 0, matrix.size(1));
}

}  // namespace

size_t GemmKeyHash::operator()(const GemmKey& key) const {
  uint64_t hash = 0;
  const auto mix = [&](uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 29;
  };
  for (const int64_t size : {key.m, key.n, key.k, key.lda, key.ldb, key.ldadd, key.ldout}) {
    mix(static_cast<uint64_t>(size));
  }
  for (const uint64_t value :
       {key.alignment_a, key.alignment_b, key.alignment_add, key.alignment_out}) {
    mix(value);
  }
  mix(static_cast<uint64_t>(key.transpose_a) | static_cast<uint64_t>(key.transpose_b) << 1 |
      static_cast<uint64_t>(key.dtype) << 2 | static_cast<uint64_t>(key.out_dtype) << 5 |
      static_cast<uint64_t>(key.accumulates) << 8 | static_cast<uint64_t>(key.tf32) << 9 |
      static_cast<uint64_t>(key.rowwise_scales) << 10 |
      static_cast<uint64_t>(key.fast_accumulation) << 11 | static_cast<uint64_t>(key.fp8) << 12 |
      static_cast<uint64_t>(key.device) << 14);
  return static_cast<size_t>(hash);
}

at::Tensor with_separate_rows(const at::Tensor& matrix) {
  return rows_are_separate(matrix) ? matrix : matrix.clone(at::MemoryFormat::Contiguous);
}

GemmKey gemm_key(const at::Tensor& a, const at::Tensor& b, const at::Tensor& addend,
                 const at::Tensor& out, bool transpose_a, bool transpose_b, double beta) {
  const bool tf32 =
      at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
      at::Float32Precision::TF32;
  TORCH_CHECK_VALUE(rows_are_separate(out), "gemm: the rows of out overlap");
  return {.m = out.size(0),
          .n = out.size(1),
          .k = a.size(transpose_a ? 0 : 1),
          .lda = leading_dimension(a),
          .ldb = leading_dimension(b),
          .ldadd = leading_dimension(addend),
          .ldout = leading_dimension(out),
          .transpose_a = transpose_a,
          .transpose_b = transpose_b,
          .dtype = dtype_of(a),
          .out_dtype = dtype_of(out),
          .accumulates = beta != 0,
          .tf32 = tf32 && dtype_of(a) == Dtype::kFloat,
          .alignment_a = alignment_of(a),
          .alignment_b = alignment_of(b),
          .alignment_add = alignment_of(addend),
          .alignment_out = alignment_of(out),
          .device = static_cast<int>(a.device().index())};
}

}  // namespace fastsft::cuda
