#include "model/activation_buffers.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

namespace fastsft {

ActivationBuffers::ActivationBuffers(const ModelConfig& config, at::ScalarType dtype,
                                     Recompute recompute, at::Device device,
                                     const AdapterSizes& adapters)
    : config_(config),
      dtype_(dtype),
      recompute_(recompute),
      device_(device),
      adapters_(adapters),
      table_(table_of({}, Pass::kTraining)) {}

BufferTable ActivationBuffers::table_of(const MicroBatchShape& shape, Pass pass) const {
  const BufferOptions options{.dtype = dtype_,
                              .recompute = recompute_,
                              .device = device_.type(),
                              .threads = at::get_num_threads(),
                              .adapters = adapters_};
  return {config_, options, shape, pass};
}

void ActivationBuffers::reserve(const MicroBatchShape& shape) {
  begin(shape, Pass::kTraining);
  for (const Buffer owner : table_.owners()) {
    if (table_[owner].lifetime == Lifetime::kNoise) continue;
    for (int64_t copy = 0; copy < table_.copies(owner); ++copy) get(owner, copy);
  }
}

void ActivationBuffers::begin(const MicroBatchShape& shape, Pass pass) {
  table_ = table_of(shape, pass);
}

at::Tensor ActivationBuffers::get(Buffer buffer, int64_t layer) {
  const BufferRow& row = table_[buffer];
  const auto copy = static_cast<size_t>(layer % table_.copies(row.in));
  auto& copies = memory_[static_cast<size_t>(row.in)];
  if (copies.size() <= copy) copies.resize(copy + 1);
  at::Tensor& memory = copies[copy];
  const int64_t capacity = table_.capacity(row.in);
  if (!memory.defined() || memory.numel() < capacity) {
    memory = at::Tensor();  // before the larger one comes
    memory = at::empty({capacity}, at::TensorOptions().dtype(row.dtype).device(device_));
  }
  return memory.narrow(0, 0, row.numel()).view(row.sizes);
}

int64_t ActivationBuffers::nbytes() const {
  int64_t sum = 0;
  for (const auto& copies : memory_) {
    for (const auto& memory : copies) {
      if (memory.defined()) sum += static_cast<int64_t>(memory.nbytes());
    }
  }
  return sum;
}

}  // namespace fastsft
