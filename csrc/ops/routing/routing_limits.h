#pragma once

namespace fastsft {

// The CUDA kernels keep a token's probabilities in shared memory, and one chosen expert a lane.
inline constexpr int kMostExperts = 1024;
inline constexpr int kMostChosen = 32;

}  // namespace fastsft
