#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "data/device_event.h"

namespace fastsft {

// The inputs of blocks, in host memory from forward to backward (page-locked for a GPU), where
// backward computes blocks again from them. Two device slots take turns: input n is in slot n % 2.
// In forward an input is copied out while its block computes; in backward it is copied in while the
// block above computes, on two side streams. The inputs of the last two blocks stay in the slots.
// On the CPU the same copies run one after the other.
class OffloadedInputs {
 public:
  // The inputs of the layers [lowest, layers) are needed in backward.
  OffloadedInputs(at::Device device, int64_t lowest, int64_t layers);
  ~OffloadedInputs();
  OffloadedInputs(const OffloadedInputs&) = delete;
  OffloadedInputs& operator=(const OffloadedInputs&) = delete;

  // Returns how many inputs of layers [lowest, layers) wait on the host.
  static int64_t count(int64_t lowest, int64_t layers);

  // Allocates host memory for inputs of `bytes` each. Before a pass, and ahead of the first.
  void reserve(int64_t bytes);
  // Call around the enqueueing of a block. `input`: the slot, whose content is the layer's input.
  void before_forward(int64_t layer, const at::Tensor& input);
  void before_backward(int64_t layer);
  void after_backward(int64_t layer, const at::Tensor& input);
  int64_t nbytes() const;  // bytes on the host

 private:
  enum class To { kHost, kDevice };
  struct Slot {
    DeviceEvent left, arrived;
  };
  bool waits_on_host(int64_t layer) const { return layer >= lowest_ && layer < layers_ - 2; }
  Slot& slot_of(int64_t layer) { return slots_[static_cast<size_t>(layer % 2)]; }
  void copy(int64_t layer, const at::Tensor& slot, To to, std::optional<c10::Stream> stream);

  at::Device device_;
  int64_t lowest_, layers_;
  std::optional<c10::Stream> coming_, leaving_;
  std::array<Slot, 2> slots_;
  DeviceEvent enqueued_;            // work on the current stream, before a copy
  std::vector<at::Tensor> pieces_;  // uint8, end to end
};

}  // namespace fastsft
