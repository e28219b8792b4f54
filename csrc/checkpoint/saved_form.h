#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shard/unit_state.h"
#include "storage/byte_source.h"
#include "storage/dtype.h"
#include "storage/safetensors_writer.h"

namespace fastsft {

// A function that fills `to` with a tensor's bytes from `offset` on.
using TensorBytes = std::function<void(uint64_t offset, std::span<std::byte> to)>;

// A tensor in a model's files that no unit holds, because nothing computes with it or trains it. It
// is written unchanged.
struct CarriedTensor {
  TensorSpec spec;
  TensorBytes bytes;
};

// Differences between a saved model's files and the units. By default a tensor has the save's
// dtype.
struct SavedForm {
  std::vector<CarriedTensor> carried;
  std::map<std::string, DType> dtypes;  // dtypes for tensors that differ from the save's dtype
  // source files of carried tensors, by path
  std::map<std::string, std::shared_ptr<const FileBytes>> files;

  DType dtype_of(const std::string& name, DType otherwise) const {
    const auto found = dtypes.find(name);
    return found == dtypes.end() ? otherwise : found->second;
  }
  // Carries the tensor at byte `begin` of the file `path`. The file stays open, so that renaming or
  // replacing it later does no harm.
  void carry(TensorSpec spec, const std::string& path, uint64_t begin);
  // Carries the tensor with the bytes `data`. Throws std::invalid_argument if their number is
  // wrong.
  void carry(TensorSpec spec, std::string data);
};

// Returns all bytes of the tensor.
std::vector<std::byte> bytes_of(const CarriedTensor& tensor);

// Returns the order in which tensors are stored in a file, as indices into `specs`: larger elements
// first, so that each tensor's offset is a multiple of its element size. Tensors with equal element
// sizes keep their order.
std::vector<size_t> aligned_order(const std::vector<TensorSpec>& specs);

// A tensor of the model and the unit that holds it.
struct TensorPlace {
  size_t unit = 0;
  const ParamSlot* slot = nullptr;
};

// Returns all tensors in the order of transformers' state dict, which decides the split into files.
// The order is `file_order`, if it is given; otherwise embedding, layers by number (attention, MLP,
// norms; weights before biases), final norm, head.
std::vector<TensorPlace> state_dict_order(std::span<const UnitState> units);

}  // namespace fastsft
