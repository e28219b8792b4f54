#include "checkpoint/local_range.h"

#include "checkpoint/float_conversion.h"
#include "checkpoint/host_values.h"
#include "core/error.h"
#include "shard/unit_state.h"

namespace fastsft {

bool owns_whole(const UnitState& state) {
  return state.begin == 0 && state.end >= state.unit->numel();
}

namespace {

// Reads the elements `part` of `source` as float32 into `to`.
void read_part(ElementRange part, ElementRange source, DType dtype, const std::byte* data,
               const at::Tensor& to) {
  const int64_t skipped = (part.begin - source.begin) * dtype_bits(dtype) / 8;
  read_floats(dtype, data + skipped,
              {to.mutable_data_ptr<float>(), static_cast<size_t>(part.size())});
}

}  // namespace

void store_owned(const UnitState& state, const at::Tensor& moment, ElementRange source, DType dtype,
                 const std::byte* data) {
  const ElementRange part = source.intersection({state.begin, state.end});
  if (part.size() == 0) return;
  const at::Tensor place = moment.narrow(0, part.begin - state.begin, part.size());
  const bool direct = place.device().is_cpu() && place.scalar_type() == at::kFloat;
  const at::Tensor values = direct ? place : host_buffer(part.size(), place.device(), at::kFloat);
  read_part(part, source, dtype, data, values);
  if (!direct) place.copy_(values);
}

DType stored_dtype(const StateSpec& spec) {
  if (spec.dtype == at::kByte) return DType::kU8;
  return spec.dtype == at::kFloat ? DType::kF32 : DType::kBF16;
}

void store_values(const UnitState& state, size_t index, ElementRange source, DType dtype,
                  const std::byte* data) {
  const StateSpec& spec = state.kept()[index];
  const ElementRange part =
      spec.by_ranges() ? source.intersection(state.range()) : ElementRange{0, spec.stored(source)};
  const int64_t count = spec.by_ranges() ? spec.count(part) : part.size();
  if (count == 0) return;
  if (spec.by_ranges() && dtype != DType::kU8 && count == part.size()) {
    return store_owned(state, state.values[index], source, dtype, data);
  }
  const int64_t to = spec.by_ranges() ? spec.offset(state.range(), part) : 0;
  const int64_t from = spec.by_ranges() ? spec.offset(source, part) : 0;
  const at::Tensor place = state.values[index].narrow(0, to, count);
  const at::Tensor values =
      host_buffer(count, place.device(), dtype == DType::kU8 ? at::kByte : at::kFloat);
  const std::byte* first = data + from * dtype_bits(dtype) / 8;
  if (dtype == DType::kU8) {
    std::copy_n(first, count, static_cast<std::byte*>(values.mutable_data_ptr()));
  } else {
    read_floats(dtype, first, {values.mutable_data_ptr<float>(), static_cast<size_t>(count)});
  }
  place.copy_(values);
}

void store_in_four_bits(const UnitState& state, int64_t offset, const at::Tensor& values) {
  const at::Tensor flat = values.reshape({-1}).to(state.master.options());
  for (const auto& slot : state.unit->slots()) {
    if (slot.offset != offset) continue;
    require(flat.isfinite().all().item<bool>(), slot.name,
            ": expected finite values, got NaN or infinity, which 4 bits cannot hold");
  }
  state.nf4->store(offset, flat);
}

void store_owned_master(const UnitState& state, ElementRange source, DType dtype,
                        const std::byte* data) {
  if (state.nf4 && state.nf4->holds(source.begin)) {
    const at::Tensor values = host_buffer(source.size(), state.master.device(), at::kFloat);
    read_part(source, source, dtype, data, values);
    return store_in_four_bits(state, source.begin, values);
  }
  if (!state.split()) return store_owned(state, state.master, source, dtype, data);
  const ElementRange part = source.intersection({state.begin, state.end});
  if (part.size() == 0) return;
  const at::Tensor values = host_buffer(part.size(), state.master.device(), at::kFloat);
  read_part(part, source, dtype, data, values);
  write_master(state, part.begin - state.begin, values);
}

}  // namespace fastsft
