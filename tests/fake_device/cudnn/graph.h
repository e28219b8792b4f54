// An operation graph that was finalized: what cuDNN would compile.
#pragma once

#include <cudnn.h>

#include <array>
#include <map>
#include <vector>

#include "descriptors.h"

namespace fake_cudnn {

// [batch, heads, rows, columns]. With offsets (a ragged tensor) an entry of the batch begins where
// they say, in elements, and ends where the next one begins.
struct Tensor {
  int64_t uid = 0, offsets = -1;  // uids
  cudnnDataType_t dtype = CUDNN_DATA_FLOAT;
  std::array<int64_t, 4> dims{}, strides{};
  bool is_virtual = false;  // else it is in memory
  bool by_value = false;    // its memory is the host's

  int64_t elements() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
  // The dimension of tokens in a ragged tensor: its elements are further apart than the other's.
  size_t token_axis() const { return dims[3] > 1 && strides[3] > strides[2] ? 3 : 2; }
};

struct Operation {
  enum Kind { kMatmul, kPointwise, kReduction, kReshape } kind;
  int64_t x = -1, b = -1, t = -1, y = -1;       // tensors; matmul: y = x b
  int64_t rows = -1, columns = -1, inner = -1;  // tensors with a matmul's actual sizes
  int mode = 0;                                 // cudnnPointwiseMode_t or cudnnReduceTensorOp_t
  int64_t axis = -1;                            // of an index
};

// An operation with its tensors.
struct Step {
  Operation operation;
  std::map<int64_t, Tensor> tensors;
};

struct Graph {
  std::map<int64_t, Tensor> tensors;
  std::vector<Operation> operations;  // each after those whose results it reads

  // Scratch memory of the plan itself: gradients of all query heads before they are added up.
  int64_t workspace() const;
};

// Reads an operation when it is finalized: what it refers to may be destroyed afterwards. Throws
// std::runtime_error for what is not implemented.
Step step_of(const Descriptor& operation);
bool is_operation(cudnnBackendDescriptorType_t type);
Graph graph_of(const Descriptor& operation_graph);
size_t bytes_of(cudnnDataType_t type);

// The memory of a call, by uid.
using Pointers = std::map<int64_t, void*>;
void compute(const Graph& graph, const Pointers& pointers);

}  // namespace fake_cudnn
