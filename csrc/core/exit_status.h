#pragma once

namespace fastsft {

// Ranks lost each other, or one is stuck (docs/signals.md).
inline constexpr int kExitPeerLost = 3;

}  // namespace fastsft
