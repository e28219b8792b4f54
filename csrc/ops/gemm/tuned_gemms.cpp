#include "ops/gemm/tuned_gemms.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <tuple>

namespace fastsft {
namespace {

using cuda::GemmKey;

std::atomic<bool> tuning{false};

// Returns the key's parts that must match exactly: all but m, k, the alignments and the device.
auto kind_of(const GemmKey& key) {
  return std::tuple(key.n, key.lda, key.ldb, key.ldadd, key.ldout, key.transpose_a, key.transpose_b,
                    key.dtype, key.out_dtype, key.accumulates, key.tf32, key.fp8,
                    key.rowwise_scales, key.fast_accumulation);
}

bool aligned_as_well(const GemmKey& key, const GemmKey& entry) {
  return key.alignment_a >= entry.alignment_a && key.alignment_b >= entry.alignment_b &&
         key.alignment_add >= entry.alignment_add && key.alignment_out >= entry.alignment_out;
}

// Returns how far `key` is from `entry` in m or k; nullopt if it is too far or another kind of
// product.
std::optional<int64_t> distance(const GemmKey& entry, const GemmKey& key) {
  const int64_t rows = std::abs(key.m - entry.m), inner = std::abs(key.k - entry.k);
  const bool in_reach = (rows == 0 || inner == 0) && 8 * rows <= entry.m && 8 * inner <= entry.k;
  if (!in_reach || kind_of(key) != kind_of(entry) || !aligned_as_well(key, entry)) return {};
  return rows + inner;
}

}  // namespace

TunedGemms& TunedGemms::instance() {
  static auto* const instance = new TunedGemms;  // leaked, like the plans that use it
  return *instance;
}

std::optional<TunedGemm> TunedGemms::near(const GemmKey& key) const {
  const std::lock_guard lock(mutex_);
  const TunedGemm* nearest = nullptr;
  int64_t least = 0;
  for (const TunedGemm& entry : entries_) {
    const auto away = distance(entry.key, key);
    if (away && (nearest == nullptr || *away < least)) nearest = &entry, least = *away;
  }
  return nearest == nullptr ? std::nullopt : std::optional(*nearest);
}

std::vector<TunedGemm> TunedGemms::entries() const {
  const std::lock_guard lock(mutex_);
  return entries_;
}

void TunedGemms::set(std::vector<TunedGemm> entries) {
  const std::lock_guard lock(mutex_);
  entries_ = std::move(entries);
  ++generation_;
}

void TunedGemms::add(const TunedGemm& entry) {
  const std::lock_guard lock(mutex_);
  entries_.push_back(entry);
  ++generation_;
}

uint64_t TunedGemms::generation() const {
  const std::lock_guard lock(mutex_);
  return generation_;
}

GemmTuning::GemmTuning() { tuning = true; }
GemmTuning::~GemmTuning() { tuning = false; }
bool GemmTuning::active() { return tuning; }

}  // namespace fastsft
