#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "core/error.h"
#include "ops/gemm/gemm_plans.h"
#include "ops/gemm/tuned_gemms.h"

namespace fastsft::cuda {
namespace {

constexpr int kRounds = 5;       // each round measures every candidate; the best round counts
constexpr float kSpan = 0.3f;    // milliseconds; lower bound of one measurement
constexpr int kMostRuns = 100;   // per measurement
constexpr float kWorth = 1.02f;  // required speedup over the first proposal; less is noise
constexpr float kNever = std::numeric_limits<float>::infinity();

class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {
    C10_CUDA_CHECK(cudaEventCreate(&begin_));
    C10_CUDA_CHECK(cudaEventCreate(&end_));
  }
  ~Stopwatch() {
    for (cudaEvent_t event : {begin_, end_}) {
      if (event != nullptr) static_cast<void>(cudaEventDestroy(event));
    }
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  // Returns the device time, in milliseconds, that the work enqueued by `work` takes.
  template <typename Work>
  float measure(const Work& work) {
    C10_CUDA_CHECK(cudaEventRecord(begin_, stream_));
    work();
    C10_CUDA_CHECK(cudaEventRecord(end_, stream_));
    C10_CUDA_CHECK(cudaEventSynchronize(end_));
    float milliseconds = 0;
    C10_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return milliseconds;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// Returns true if the candidate runs, which also loads its kernel. cuBLASLt may refuse to run its
// own proposals.
bool runs(const GemmPlan& plan, const GemmKey& key, const GemmOperands& operands,
          size_t candidate) {
  try {
    run_gemm(plan, key, plan.candidates[candidate], operands);
  } catch (const std::runtime_error&) {
    if (candidate == 0) throw;
    return false;
  }
  return true;
}

// Returns the milliseconds per run of each candidate, infinity if refused. All candidates run
// equally often.
std::vector<float> candidate_times(const GemmPlan& plan, const GemmKey& key,
                                   const GemmOperands& operands) {
  const auto device = static_cast<c10::DeviceIndex>(key.device);
  Stopwatch watch(c10::cuda::getCurrentCUDAStream(device));
  std::vector<float> times(plan.candidates.size(), kNever);
  std::vector<size_t> running;
  for (size_t i = 0; i < times.size(); ++i) {
    if (runs(plan, key, operands, i)) running.push_back(i);
  }
  const auto measure = [&](size_t candidate, int count) {
    return watch.measure([&] {
      for (int run = 0; run < count; ++run) {
        run_gemm(plan, key, plan.candidates[candidate], operands);
      }
    });
  };
  const float once = measure(0, 1);
  const int count = std::clamp(static_cast<int>(std::ceil(kSpan / once)), 1, kMostRuns);
  for (int round = 0; round < kRounds; ++round) {
    for (const size_t i : running) {
      times[i] = std::min(times[i], measure(i, count) / static_cast<float>(count));
    }
  }
  return times;
}

}  // namespace

bool run_planned(const GemmKey& key, const GemmOperands& operands) {
  auto plan = gemm_plan(key, operands);
  if (plan->candidates.empty()) return false;
  if (GemmTuning::active() && !TunedGemms::instance().near(key)) {
    tune_gemm(*plan, key, operands);
    plan = gemm_plan(key, operands);
  }
  try {
    run_gemm(*plan, key, plan->algorithm, operands);
  } catch (const std::runtime_error&) {
    if (!plan->tuned) throw;
    drop_tuned(key);
    run_gemm(*plan, key, plan->candidates.front(), operands);
  }
  return true;
}

void tune_gemm(const GemmPlan& plan, const GemmKey& key, const GemmOperands& operands) {
  const std::vector<float> times = candidate_times(plan, key, operands);
  const auto fastest = std::ranges::min_element(times);
  const bool worth = times.front() >= kWorth * *fastest;
  const size_t index = worth ? static_cast<size_t>(fastest - times.begin()) : 0;
  TunedGemm entry{.key = key, .gain = times.front() / times[index]};
  const cublasLtMatmulAlgo_t& algorithm = plan.candidates[index];
  std::memcpy(entry.algorithm.data(), algorithm.data, sizeof algorithm.data);
  TunedGemms::instance().add(entry);
}

}  // namespace fastsft::cuda
