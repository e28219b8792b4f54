#include "sync/plan_hash.h"

#include <cstdint>
#include <cstdio>

namespace fastsft {
namespace {

using Wide = unsigned __int128;

constexpr Wide wide(uint64_t high, uint64_t low) { return (static_cast<Wide>(high) << 64) | low; }

class Fingerprint {
 public:
  void add(uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) mix(static_cast<unsigned char>(number >> shift));
  }
  void add(std::string_view text) {
    add(text.size());
    for (char byte : text) mix(static_cast<unsigned char>(byte));
  }
  std::string hex() const {
    char text[33];
    std::snprintf(text, sizeof text, "%016llx%016llx",
                  static_cast<unsigned long long>(state_ >> 64),
                  static_cast<unsigned long long>(state_));
    return text;
  }

 private:
  void mix(unsigned char byte) { state_ = (state_ ^ byte) * wide(0x1000000, 0x13b); }

  Wide state_ = wide(0x6c62272e07bb0142, 0x62b821756295c58d);
};

}  // namespace

std::string plan_hash(const std::vector<TensorSpec>& tensors, const std::vector<TiedName>& tied) {
  Fingerprint fingerprint;
  fingerprint.add(tensors.size());
  for (const auto& tensor : tensors) {
    fingerprint.add(tensor.name);
    fingerprint.add(dtype_name(tensor.dtype));
    fingerprint.add(tensor.shape.size());
    for (uint64_t size : tensor.shape) fingerprint.add(size);
  }
  for (const auto& [name, owner] : tied) {
    fingerprint.add(name);
    fingerprint.add(owner);
  }
  return fingerprint.hex();
}

}  // namespace fastsft
