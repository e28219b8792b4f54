// Numbers of one entry of the batch, in float32, and their way from and to memory.
#pragma once

#include <limits>
#include <vector>

#include "device/device.h"
#include "graph.h"

namespace fake_cudnn {

struct Values {
  std::array<int64_t, 3> dims{};  // heads, rows, columns
  std::vector<float> data;

  explicit Values(const Tensor& like)
      : dims{like.dims[1], like.dims[2], like.dims[3]},
        data(static_cast<size_t>(dims[0] * dims[1] * dims[2])) {}
  float& at(int64_t head, int64_t row, int64_t column) {
    return data[static_cast<size_t>((head * dims[1] + row) * dims[2] + column)];
  }
  float at(int64_t head, int64_t row, int64_t column) const {
    return const_cast<Values&>(*this).at(head, row, column);
  }
  // As `at`, repeating dimensions of one element.
  float repeated(int64_t head, int64_t row, int64_t column) const {
    return at(dims[0] == 1 ? 0 : head, dims[1] == 1 ? 0 : row, dims[2] == 1 ? 0 : column);
  }
};

// Reads and writes an entry of the batch. Tokens that a ragged tensor has not are NaN when they are
// read, and not written.
class Memory {
 public:
  Memory(const Graph& graph, const Pointers& pointers) : graph_(graph), pointers_(pointers) {}

  Values load(const Tensor& tensor, int64_t entry);
  void store(const Tensor& tensor, int64_t entry, const Values& values);
  // Returns how many tokens an entry of a ragged tensor has.
  int64_t tokens(const Tensor& tensor, int64_t entry);
  const fake_device::Ranges& touched() const { return touched_; }

 private:
  struct Place {
    char* data;      // of the entry
    int64_t tokens;  // that it has
  };
  Place place(const Tensor& tensor, int64_t entry, bool write);
  int32_t offset(int64_t uid, int64_t entry);

  const Graph& graph_;
  const Pointers& pointers_;
  fake_device::Ranges touched_;
};

// Rounds as a tensor of this type would hold the number.
float rounded(float value, cudnnDataType_t dtype);

}  // namespace fake_cudnn
