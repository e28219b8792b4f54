// Computes an operation graph, one entry of the batch after the other.
#include <algorithm>
#include <cmath>

#include "values.h"

namespace fake_cudnn {
namespace {

using Known = std::map<int64_t, Values>;

float pointwise(int mode, float x, float b, float t) {
  switch (mode) {
    case CUDNN_POINTWISE_ADD:
      return x + b;
    case CUDNN_POINTWISE_SUB:
      return x - b;
    case CUDNN_POINTWISE_MUL:
      return x * b;
    case CUDNN_POINTWISE_DIV:
      return x / b;
    case CUDNN_POINTWISE_EXP:
      return std::exp(x);
    case CUDNN_POINTWISE_LOG:
      return std::log(x);
    case CUDNN_POINTWISE_IDENTITY:
      return x;
    case CUDNN_POINTWISE_CMP_LT:
      return x < b;
    case CUDNN_POINTWISE_CMP_LE:
      return x <= b;
    case CUDNN_POINTWISE_CMP_GT:
      return x > b;
    case CUDNN_POINTWISE_CMP_GE:
      return x >= b;
    case CUDNN_POINTWISE_LOGICAL_AND:
      return x != 0 && b != 0;
    case CUDNN_POINTWISE_BINARY_SELECT:
      return t != 0 ? x : b;
    default:
      throw std::runtime_error("pointwise mode " + std::to_string(mode) + " is not implemented");
  }
}

// Visits (head, row, column) of a tensor's entry.
template <typename Visit>
void for_each(const Values& values, const Visit& visit) {
  for (int64_t head = 0; head < values.dims[0]; ++head) {
    for (int64_t row = 0; row < values.dims[1]; ++row) {
      for (int64_t column = 0; column < values.dims[2]; ++column) visit(head, row, column);
    }
  }
}

// An entry of the batch: its tensors, virtual ones by value, others in memory.
class Entry {
 public:
  Entry(const Graph& graph, Memory& memory, int64_t index)
      : graph_(graph), memory_(memory), index_(index) {}

  void run(const Operation& operation) {
    const Tensor& to = graph_.tensors.at(operation.y);
    Values result(to);
    switch (operation.kind) {
      case Operation::kMatmul:
        multiply(operation, result);
        break;
      case Operation::kPointwise:
        apply(operation, result);
        break;
      case Operation::kReduction:
        reduce(operation, result);
        break;
      case Operation::kReshape:
        reshape(operation, result);
    }
    for (float& value : result.data) value = rounded(value, to.dtype);
    if (!to.is_virtual) memory_.store(to, index_, result);
    if (to.is_virtual) known_.insert_or_assign(operation.y, std::move(result));
  }

 private:
  Values get(int64_t uid) const {
    const auto found = known_.find(uid);
    return found != known_.end() ? found->second : memory_.load(graph_.tensors.at(uid), index_);
  }
  int64_t size_of(int64_t uid, int64_t most) const {
    return uid < 0 ? most : std::min(most, static_cast<int64_t>(get(uid).data.front()));
  }

  // Rows and columns beyond the actual sizes are 0.
  void multiply(const Operation& operation, Values& y) const {
    const Values a = get(operation.x), b = get(operation.b);
    const int64_t rows = size_of(operation.rows, y.dims[1]);
    const int64_t columns = size_of(operation.columns, y.dims[2]);
    const int64_t inner = size_of(operation.inner, a.dims[2]);
    const int64_t group = y.dims[0] / b.dims[0];
    for (int64_t head = 0; head < y.dims[0]; ++head) {
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t k = 0; k < inner; ++k) {
          const float factor = a.at(head, row, k);
          for (int64_t column = 0; column < columns; ++column) {
            y.at(head, row, column) += factor * b.at(head / group, k, column);
          }
        }
      }
    }
  }

  void apply(const Operation& operation, Values& y) const {
    if (operation.mode == CUDNN_POINTWISE_GEN_INDEX) {
      return for_each(y, [&](int64_t head, int64_t row, int64_t column) {
        const std::array<int64_t, 4> index{index_, head, row, column};
        y.at(head, row, column) = static_cast<float>(index.at(static_cast<size_t>(operation.axis)));
      });
    }
    const Values x = get(operation.x);
    const Values b = operation.b < 0 ? x : get(operation.b);
    const Values t = operation.t < 0 ? x : get(operation.t);
    for_each(y, [&](int64_t head, int64_t row, int64_t column) {
      y.at(head, row, column) =
          pointwise(operation.mode, x.repeated(head, row, column), b.repeated(head, row, column),
                    t.repeated(head, row, column));
    });
  }

  // Neighbouring elements go to the same result.
  void reduce(const Operation& operation, Values& y) const {
    const bool largest = operation.mode == CUDNN_REDUCE_TENSOR_MAX;
    if (!largest && operation.mode != CUDNN_REDUCE_TENSOR_ADD) {
      throw std::runtime_error("reduction " + std::to_string(operation.mode) +
                               " is not implemented");
    }
    const Values x = get(operation.x);
    if (largest) std::fill(y.data.begin(), y.data.end(), -std::numeric_limits<float>::infinity());
    for_each(x, [&](int64_t head, int64_t row, int64_t column) {
      float& into = y.at(head * y.dims[0] / x.dims[0], row * y.dims[1] / x.dims[1],
                         column * y.dims[2] / x.dims[2]);
      const float value = x.at(head, row, column);
      into = !largest ? into + value : value > into || value != value ? value : into;
    });
  }

  // A transposition, or another description of the same memory.
  void reshape(const Operation& operation, Values& y) const {
    const Tensor& from = graph_.tensors.at(operation.x);
    const Tensor& to = graph_.tensors.at(operation.y);
    const Values x = get(operation.x);
    const bool swapped = from.strides[2] == to.strides[3] && from.strides[3] == to.strides[2];
    const bool same = from.dims == to.dims && from.strides == to.strides;
    if (!swapped && !same) throw std::runtime_error("a reshape that is no transposition");
    for_each(y, [&](int64_t head, int64_t row, int64_t column) {
      y.at(head, row, column) = swapped ? x.at(head, column, row) : x.at(head, row, column);
    });
  }

  const Graph& graph_;
  Memory& memory_;
  int64_t index_;
  Known known_;
};

// Leaves out what follows the first token that an entry does not have: it is NaN or 0 as that one.
Graph shortened(const Graph& graph, Memory& memory, int64_t index) {
  int64_t longest = 0, tokens = 0;
  for (const auto& [uid, tensor] : graph.tensors) {
    if (tensor.is_virtual || tensor.offsets < 0) continue;
    const size_t axis = tensor.token_axis();
    longest = tensor.dims[axis];
    tokens = std::min(longest, memory.tokens(tensor, index) + 1);
    if (tensor.dims[5 - axis] == longest) return graph;  // which dimension is that of tokens?
  }
  Graph result = graph;
  for (auto& [uid, tensor] : result.tensors) {
    for (const size_t i : {2, 3}) {
      if (tensor.dims[i] == longest) tensor.dims[i] = tokens;
    }
  }
  return result;
}

}  // namespace

void compute(const Graph& graph, const Pointers& pointers) {
  Memory memory(graph, pointers);
  const int64_t batch = graph.tensors.at(graph.operations.front().y).dims[0];
  for (int64_t index = 0; index < batch; ++index) {
    const Graph shorter = shortened(graph, memory, index);
    Entry entry(shorter, memory, index);
    for (const Operation& operation : shorter.operations) entry.run(operation);
  }
  if (fake_device::needs_touched_bytes()) fake_device::touched(memory.touched());
}

}  // namespace fake_cudnn
