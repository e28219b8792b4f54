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

// Fills `to` with the bytes of a tensor from `offset` on.
using TensorBytes = std::function<void(uint64_t offset, std::span<std::byte> to)>;

// A tensor of a model's files that is in no unit: nothing computes with it, or nothing trains it.
// It is written as it was read.
struct CarriedTensor {
  TensorSpec spec;
  TensorBytes bytes;
};

// How the files of a saved model differ from the units, each in the type of the save.
struct SavedForm {
  std::vector<CarriedTensor> carried;
  std::map<std::string, DType> dtypes;  // of tensors that are written in a type of their own
  std::map<std::string, std::shared_ptr<const FileBytes>> files;  // of carried tensors, by path

  DType dtype_of(const std::string& name, DType otherwise) const {
    const auto found = dtypes.find(name);
    return found == dtypes.end() ? otherwise : found->second;
  }
  // Carries the tensor that begins at byte `begin` of the file `path`, which stays open: what
  // happens to its name later changes nothing.
  void carry(TensorSpec spec, const std::string& path, uint64_t begin);
  // Carries the tensor whose bytes are `data`. std::invalid_argument when they are too few or many.
  void carry(TensorSpec spec, std::string data);
};

// The whole tensor.
std::vector<std::byte> bytes_of(const CarriedTensor& tensor);

// Tensors as they follow each other in a file: larger elements first, so that each begins at a
// multiple of its size. The indices of `specs`, which stay in order where all have one type.
std::vector<size_t> aligned_order(const std::vector<TensorSpec>& specs);

// A tensor of the model and the unit that holds it.
struct TensorPlace {
  size_t unit = 0;
  const ParamSlot* slot = nullptr;
};

// All tensors in the order of transformers' state dict: by their file_order, or embedding, layers
// by number (attention, MLP, norms, weights before biases), final norm, head. The split into files
// depends on it.
std::vector<TensorPlace> state_dict_order(std::span<const UnitState> units);

}  // namespace fastsft
