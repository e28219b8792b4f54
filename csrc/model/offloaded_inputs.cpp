#include "model/offloaded_inputs.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "core/trace.h"

namespace fastsft {
namespace {

// torch rounds page-locked memory up to a power of two, so large memory is made of such pieces.
constexpr int64_t kHostPiece = int64_t{1} << 26;

}  // namespace

OffloadedInputs::OffloadedInputs(at::Device device, int64_t lowest, int64_t layers)
    : device_(device),
      lowest_(lowest),
      layers_(layers),
      coming_(side_stream(device)),
      leaving_(side_stream(device)),
      slots_{Slot{DeviceEvent(device), DeviceEvent(device)},
             Slot{DeviceEvent(device), DeviceEvent(device)}},
      enqueued_(device) {
  for (auto& slot : slots_) slot.left.record();
}

// A step that ended early leaves copies under way, of inputs in memory that is freed next.
OffloadedInputs::~OffloadedInputs() {
  join_quietly(coming_);
  join_quietly(leaving_);
}

int64_t OffloadedInputs::count(int64_t lowest, int64_t layers) {
  return std::max<int64_t>(layers - 2 - lowest, 0);
}

void OffloadedInputs::reserve(int64_t bytes) {
  const int64_t needed = count(lowest_, layers_) * bytes;
  for (int64_t held = nbytes(); held < needed; held = nbytes()) {
    if (!pieces_.empty() && pieces_.back().numel() < kHostPiece) {
      pieces_.pop_back();
      continue;
    }
    const auto options = at::TensorOptions().dtype(at::kByte).pinned_memory(!device_.is_cpu());
    pieces_.push_back(at::empty({std::min(kHostPiece, needed - held)}, options));
  }
}

void OffloadedInputs::before_forward(int64_t layer, const at::Tensor& input) {
  // The block writes the next input over the previous one, whose copy may not be finished.
  slot_of(layer + 1).left.block();
  if (!waits_on_host(layer)) return;
  enqueued_.record();
  enqueued_.block(leaving_);
  copy(layer, input, To::kHost, leaving_);
  slot_of(layer).left.record(leaving_);
}

void OffloadedInputs::before_backward(int64_t layer) {
  if (waits_on_host(layer)) slot_of(layer).arrived.block();
}

void OffloadedInputs::after_backward(int64_t layer, const at::Tensor& input) {
  const int64_t next = layer - 2;  // in the slot that is free now
  if (!waits_on_host(next)) return;
  // The current stream has waited for the copy of `next` to the host, before the block that
  // followed.
  enqueued_.record();
  enqueued_.block(coming_);
  copy(next, input, To::kDevice, coming_);
  slot_of(next).arrived.record(coming_);
}

void OffloadedInputs::copy(int64_t layer, const at::Tensor& slot, To to,
                           std::optional<c10::Stream> stream) {
  const c10::OptionalStreamGuard guard(stream);
  const trace::Span span(trace::Track::kUpload,
                         to == To::kHost ? "input to the host" : "input from the host",
                         std::to_string(layer));
  if (slot.numel() == 0) return;
  const at::Tensor bytes = slot.view({-1}).view(at::kByte);
  const int64_t begin = (layer - lowest_) * bytes.numel();
  for (int64_t done = 0; done < bytes.numel();) {
    const int64_t at = (begin + done) % kHostPiece;
    at::Tensor& piece = pieces_[static_cast<size_t>((begin + done) / kHostPiece)];
    const int64_t size = std::min(bytes.numel() - done, piece.numel() - at);
    const at::Tensor host = piece.narrow(0, at, size), device = bytes.narrow(0, done, size);
    const auto& [from, into] = to == To::kHost ? std::tie(device, host) : std::tie(host, device);
    into.copy_(from, /*non_blocking=*/true);
    done += size;
  }
}

int64_t OffloadedInputs::nbytes() const {
  int64_t sum = 0;
  for (const auto& piece : pieces_) sum += piece.numel();
  return sum;
}

}  // namespace fastsft
