#include "graph.h"

#include <algorithm>
#include <set>

namespace fake_cudnn {
namespace {

// Reads an operation and its tensors from descriptors.
class Reader {
 public:
  std::map<int64_t, Tensor> tensors;

  int64_t tensor(const Descriptor* of) {
    if (of == nullptr) return -1;
    Tensor tensor{.uid = of->one<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID)};
    tensor.dtype = of->one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
    tensor.is_virtual = of->one<char>(CUDNN_ATTR_TENSOR_IS_VIRTUAL, 0) != 0;
    tensor.by_value = of->one<char>(CUDNN_ATTR_TENSOR_IS_BY_VALUE, 0) != 0;
    tensor.offsets = this->tensor(of->descriptor(CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC));
    copy(of->list<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS), tensor.dims);
    copy(of->list<int64_t>(CUDNN_ATTR_TENSOR_STRIDES), tensor.strides);
    tensors.emplace(tensor.uid, tensor);
    return tensor.uid;
  }

  Operation operation(const Descriptor& of) {
    const auto part = [&](cudnnBackendAttributeName_t name) { return tensor(of.descriptor(name)); };
    switch (of.type) {
      case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        return {.kind = Operation::kMatmul,
                .x = part(CUDNN_ATTR_OPERATION_MATMUL_ADESC),
                .b = part(CUDNN_ATTR_OPERATION_MATMUL_BDESC),
                .y = part(CUDNN_ATTR_OPERATION_MATMUL_CDESC),
                .rows = part(CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC),
                .columns = part(CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC),
                .inner = part(CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC)};
      case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: {
        const Descriptor& how = *of.descriptor(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
        return {.kind = Operation::kPointwise,
                .x = part(CUDNN_ATTR_OPERATION_POINTWISE_XDESC),
                .b = part(CUDNN_ATTR_OPERATION_POINTWISE_BDESC),
                .t = part(CUDNN_ATTR_OPERATION_POINTWISE_TDESC),
                .y = part(CUDNN_ATTR_OPERATION_POINTWISE_YDESC),
                .mode = how.one<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE),
                .axis = how.one<int64_t>(CUDNN_ATTR_POINTWISE_AXIS, -1)};
      }
      case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: {
        const Descriptor& how = *of.descriptor(CUDNN_ATTR_OPERATION_REDUCTION_DESC);
        return {.kind = Operation::kReduction,
                .x = part(CUDNN_ATTR_OPERATION_REDUCTION_XDESC),
                .y = part(CUDNN_ATTR_OPERATION_REDUCTION_YDESC),
                .mode = how.one<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR)};
      }
      case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        return {.kind = Operation::kReshape,
                .x = part(CUDNN_ATTR_OPERATION_RESHAPE_XDESC),
                .y = part(CUDNN_ATTR_OPERATION_RESHAPE_YDESC)};
      default:
        throw std::runtime_error("operation " + std::to_string(of.type) + " is not implemented");
    }
  }

 private:
  static void copy(const std::vector<int64_t>& from, std::array<int64_t, 4>& to) {
    if (from.size() != to.size()) throw std::runtime_error("a tensor has not 4 dimensions");
    std::copy(from.begin(), from.end(), to.begin());
  }
};

// Orders operations so that each comes after those whose results it reads.
std::vector<Operation> in_order(std::vector<Operation> left) {
  std::set<int64_t> unknown;  // tensors that an operation has yet to compute
  for (const Operation& operation : left) unknown.insert(operation.y);
  std::vector<Operation> result;
  while (!left.empty()) {
    const auto next = std::find_if(left.begin(), left.end(), [&](const Operation& o) {
      return !unknown.count(o.x) && !unknown.count(o.b) && !unknown.count(o.t);
    });
    if (next == left.end()) throw std::runtime_error("the operations of a graph form a circle");
    unknown.erase(next->y);
    result.push_back(*next);
    left.erase(next);
  }
  return result;
}

}  // namespace

size_t bytes_of(cudnnDataType_t type) {
  switch (type) {
    case CUDNN_DATA_FLOAT:
    case CUDNN_DATA_INT32:
      return 4;
    case CUDNN_DATA_HALF:
    case CUDNN_DATA_BFLOAT16:
      return 2;
    case CUDNN_DATA_BOOLEAN:
      return 1;
    default:
      throw std::runtime_error("data type " + std::to_string(type) + " is not implemented");
  }
}

int64_t Graph::workspace() const {
  int64_t bytes = 0;
  for (const Operation& operation : operations) {
    if (operation.kind != Operation::kReduction) continue;
    const Tensor &from = tensors.at(operation.x), &to = tensors.at(operation.y);
    if (from.dims[1] == to.dims[1]) continue;
    bytes += from.elements() * static_cast<int64_t>(bytes_of(from.dtype));
  }
  return bytes;
}

Step step_of(const Descriptor& operation) {
  Reader reader;
  const Operation read = reader.operation(operation);
  return {read, std::move(reader.tensors)};
}

bool is_operation(cudnnBackendDescriptorType_t type) {
  return type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR ||
         type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR ||
         type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR ||
         type == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR;
}

Graph graph_of(const Descriptor& operation_graph) {
  Graph graph;
  for (const auto* each : operation_graph.list<const Descriptor*>(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
    if (!each->step) {
      throw std::runtime_error("operation " + std::to_string(each->type) + " is not implemented");
    }
    graph.operations.push_back(each->step->operation);
    graph.tensors.insert(each->step->tensors.begin(), each->step->tensors.end());
  }
  graph.operations = in_order(graph.operations);
  return graph;
}

}  // namespace fake_cudnn
