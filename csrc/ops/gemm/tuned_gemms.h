#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ops/gemm/gemm_key.h"

namespace fastsft {

// A product and its fastest measured algorithm.
struct TunedGemm {
  // A cublasLtMatmulAlgo_t, which is valid for one cuBLASLt version on one GPU model.
  using Algorithm = std::array<uint64_t, 8>;

  cuda::GemmKey key;
  Algorithm algorithm{};
  double gain = 1;  // speedup over cuBLASLt's first proposal
};

// This process's tuned products, which gemm uses on CUDA. Thread-safe.
//
// The packed token count, and so the row count, varies from step to step. Therefore an entry also
// serves products on any device whose `m` or `k` differs by up to an eighth. Their addresses must
// be aligned at least as well, and all other parts of the key must be equal. The nearest entry is
// used, and the first of equally near entries.
class TunedGemms {
 public:
  static TunedGemms& instance();

  std::optional<TunedGemm> near(const cuda::GemmKey& key) const;
  std::vector<TunedGemm> entries() const;
  void set(std::vector<TunedGemm> entries);
  void add(const TunedGemm& entry);
  // Changes whenever the entries change; plans made before must be rebuilt.
  uint64_t generation() const;

 private:
  mutable std::mutex mutex_;
  std::vector<TunedGemm> entries_;
  uint64_t generation_ = 0;
};

// Converts entries to and from a JSON array. Throws std::invalid_argument if `text` is not such an
// array.
std::string to_json(const std::vector<TunedGemm>& entries);
std::vector<TunedGemm> parse_tuned_gemms(const std::string& text);

// Measures untuned products while an object of this class exists; at most one may exist. At a
// product's first run, each of cuBLASLt's proposals runs several times on the operands, and the
// host waits. If beta is not 0, `out` then holds a wrong sum.
class GemmTuning {
 public:
  GemmTuning();
  ~GemmTuning();
  GemmTuning(const GemmTuning&) = delete;
  GemmTuning& operator=(const GemmTuning&) = delete;

  static bool active();
};

}  // namespace fastsft
