#include "shard/unit_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>

#include <algorithm>

namespace fastsft {
namespace {

// Work in pieces, because every operation allocates a temporary tensor.
constexpr int64_t kPiece = int64_t{1} << 20;

template <typename Work>
void in_pieces(int64_t size, const Work& work) {
  for (int64_t begin = 0; begin < size; begin += kPiece) {
    work(begin, std::min(kPiece, size - begin));
  }
}

at::Tensor upper_half(const at::Tensor& master) {
  const at::Tensor nearest = master.view(at::kInt).add(0x8000).bitwise_right_shift(16);
  return at::where(master.isnan(), master.to(at::kBFloat16),
                   nearest.to(at::kShort).view(at::kBFloat16));
}

// Returns the lower 16 bits.
at::Tensor lower_half(const at::Tensor& master) {
  return master.view(at::kInt).bitwise_and(0xFFFF).to(at::kShort);
}

at::Tensor joined(const at::Tensor& high, const at::Tensor& low) {
  const at::Tensor upper = high.view(at::kShort).to(at::kInt).bitwise_left_shift(16);
  return upper.add(low.to(at::kInt)).view(at::kFloat);
}

}  // namespace

at::Tensor read_master(const UnitState& state) {
  return state.split() ? read_master(state, state.range()) : state.master;
}

at::Tensor read_master(const UnitState& state, const ElementRange& range) {
  const int64_t first = range.begin - state.begin;
  const at::Tensor master = state.master.narrow(0, first, range.size());
  if (!state.split()) return master;
  const auto options = at::TensorOptions().dtype(at::kFloat).device(master.device());
  const at::Tensor result = at::empty(master.sizes(), options);
  in_pieces(result.numel(), [&](int64_t begin, int64_t size) {
    const at::Tensor low = master.narrow(0, begin, size);
    const at::Tensor high = state.high.narrow(0, first + begin, size).to(low.device());
    result.narrow(0, begin, size).copy_(joined(high, low));
  });
  return result;
}

void write_master(const UnitState& state, int64_t begin, const at::Tensor& values) {
  if (!state.split()) {
    state.master.narrow(0, begin, values.numel()).copy_(values);
    return;
  }
  in_pieces(values.numel(), [&](int64_t first, int64_t size) {
    const at::Tensor wide = values.narrow(0, first, size).to(at::kFloat).contiguous();
    state.high.narrow(0, begin + first, size).copy_(upper_half(wide));
    state.master.narrow(0, begin + first, size).copy_(lower_half(wide));
  });
}

void round_master(const at::Tensor& master, const at::Tensor& copy) {
  if (copy.scalar_type() == at::kHalf) {
    copy.copy_(master);
    return;
  }
  in_pieces(master.numel(), [&](int64_t begin, int64_t size) {
    copy.narrow(0, begin, size).copy_(upper_half(master.narrow(0, begin, size)));
  });
}

}  // namespace fastsft
