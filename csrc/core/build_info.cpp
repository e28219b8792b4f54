#include "core/build_info.h"

namespace fastsft {

const char* const kCudaArchitectures = FASTSFT_ARCHITECTURES;

}  // namespace fastsft
