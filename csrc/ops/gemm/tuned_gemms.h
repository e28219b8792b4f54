#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ops/gemm/gemm_key.h"

namespace fastsft {

// A product and the algorithm that was measured to be its fastest.
struct TunedGemm {
  // A cublasLtMatmulAlgo_t: means something to one release of cuBLASLt on one kind of GPU.
  using Algorithm = std::array<uint64_t, 8>;

  cuda::GemmKey key;
  Algorithm algorithm{};
  double gain = 1;  // times as fast as cuBLASLt's first proposal
};

// The tuned products of this process, which `gemm` on CUDA runs by. Any thread may call these.
//
// Steps have as many rows as tokens were packed, a few less or more each time. So an entry serves
// every product on any device whose `m` or `k` is up to an eighth away, whose addresses are aligned
// as well or better, and whose key is the same in all else; the nearest of several, and of equally
// near ones the first.
class TunedGemms {
 public:
  static TunedGemms& instance();

  std::optional<TunedGemm> near(const cuda::GemmKey& key) const;
  std::vector<TunedGemm> entries() const;
  void set(std::vector<TunedGemm> entries);
  void add(const TunedGemm& entry);
  // Another one after every change: plans that were made before have to be made again.
  uint64_t generation() const;

 private:
  mutable std::mutex mutex_;
  std::vector<TunedGemm> entries_;
  uint64_t generation_ = 0;
};

// As a JSON array, and of one. Throws std::invalid_argument when `text` is no such array.
std::string to_json(const std::vector<TunedGemm>& entries);
std::vector<TunedGemm> parse_tuned_gemms(const std::string& text);

// While one exists, products that have no tuned algorithm are measured when they first run: each of
// cuBLASLt's proposals runs on their operands several times, and the host waits. A product that
// adds to `out` (beta is not 0) then leaves a wrong sum there. One at a time.
class GemmTuning {
 public:
  GemmTuning();
  ~GemmTuning();
  GemmTuning(const GemmTuning&) = delete;
  GemmTuning& operator=(const GemmTuning&) = delete;

  static bool active();
};

}  // namespace fastsft
