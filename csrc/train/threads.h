#pragma once

#include <cstdint>

namespace fastsft {

// How many threads at::parallel_for really runs on when asked for `num_threads`. Fewer means that
// the kernels were linked to another OpenMP runtime than torch's. Restores the setting of torch.
int64_t parallel_threads(int64_t num_threads);

}  // namespace fastsft
