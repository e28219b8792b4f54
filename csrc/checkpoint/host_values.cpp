#include "checkpoint/host_values.h"

#include "shard/unit_state.h"

namespace fastsft {

std::span<const float> HostValues::master(const UnitState& state, const ElementRange& range) {
  const auto size = static_cast<size_t>(range.size());
  if (!state.split() && state.master.is_cpu()) {
    return {state.master.const_data_ptr<float>() + (range.begin - state.begin), size};
  }
  held_ = host_copy(read_master(state, range));
  return {held_.const_data_ptr<float>(), size};
}

std::span<const std::byte> HostValues::bytes(const at::Tensor& values, const ElementRange& range) {
  const size_t width = values.element_size();
  const size_t bytes = static_cast<size_t>(range.size()) * width;
  if (values.is_cpu()) {
    const auto* data = static_cast<const std::byte*>(values.const_data_ptr());
    return {data + static_cast<size_t>(range.begin) * width, bytes};
  }
  held_ = host_copy(values.narrow(0, range.begin, range.size()));
  return {static_cast<const std::byte*>(held_.const_data_ptr()), bytes};
}

}  // namespace fastsft
