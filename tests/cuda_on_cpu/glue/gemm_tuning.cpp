// What tests see of tuned products: they are measured, and the table of them is kept and put back.
#include <memory>

#include "ops/gemm/tuned_gemms.h"

namespace {

using namespace fastsft;

std::unique_ptr<GemmTuning> tuning;
std::vector<TunedGemm> kept;

}  // namespace

extern "C" {
void cuda_on_cpu_tune_gemms(bool active) {
  tuning.reset();
  if (active) tuning = std::make_unique<GemmTuning>();
}
int cuda_on_cpu_tuned_gemms() { return static_cast<int>(TunedGemms::instance().entries().size()); }
double cuda_on_cpu_gain(int index) {
  return TunedGemms::instance().entries().at(static_cast<size_t>(index)).gain;
}
void cuda_on_cpu_keep_gemms() { kept = TunedGemms::instance().entries(); }
void cuda_on_cpu_put_back_gemms() { TunedGemms::instance().set(kept); }
void cuda_on_cpu_forget_gemms() { TunedGemms::instance().set({}); }
// An algorithm that no release of cuBLASLt here knows.
void cuda_on_cpu_spoil_gemms() {
  std::vector<TunedGemm> entries = TunedGemms::instance().entries();
  for (TunedGemm& entry : entries) entry.algorithm = {1, 2, 3};
  TunedGemms::instance().set(entries);
}
}
