#include "checkpoint/local_range.h"

#include "checkpoint/float_conversion.h"
#include "checkpoint/host_copy.h"

namespace fastsft {

ElementRange owned_range(const UnitState& state) {
  const ElementRange tensors{0, state.unit->numel()};
  const ElementRange owned = ElementRange{state.begin, state.end}.intersection(tensors);
  return owned.size() > 0 ? owned : ElementRange{state.begin, state.begin};
}

bool owns_whole(const UnitState& state) {
  return state.begin == 0 && state.end >= state.unit->numel();
}

void store_owned(const UnitState& state, at::Tensor& target, ElementRange source, DType dtype,
                 const std::byte* data) {
  const ElementRange part = source.intersection({state.begin, state.end});
  if (part.size() == 0) return;
  const int64_t skipped = (part.begin - source.begin) * dtype_bits(dtype) / 8;
  at::Tensor destination = target.narrow(0, part.begin - state.begin, part.size());
  const bool direct = destination.device().is_cpu();
  at::Tensor values = direct ? destination : host_buffer(part.size(), destination.device());
  read_floats(dtype, data + skipped,
              {values.mutable_data_ptr<float>(), static_cast<size_t>(part.size())});
  if (!direct) destination.copy_(values);
}

at::Tensor load_owned(const UnitState& state, const at::Tensor& source) {
  return host_copy(source.narrow(0, 0, owned_range(state).size())).contiguous();
}

}  // namespace fastsft
