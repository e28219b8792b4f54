#include "ops/attention/cudnn_plans.h"

#include <cudnn_frontend.h>

#include <unordered_map>
#include <utility>
#include <vector>

namespace fastsft::cuda {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;
using fe::graph::Tensor_attributes;
using Tensor = std::shared_ptr<Tensor_attributes>;

enum Id : int64_t {
  kQuery = 1,
  kKey,
  kValue,
  kOut,
  kLse,
  kGradOut,
  kGradQuery,
  kGradKey,
  kGradValue,
  kQueryLengths,
  kKeyLengths,
  kQueryOffsets,
  kKeyOffsets,
  kValueOffsets,
  kOutOffsets,
  kLseOffsets
};

void check(const fe::error_t& error) {
  if (error.is_bad()) throw CudnnRefusal(error.err_msg);
}

Tensor list_of_int32(Graph& graph, Id id, int64_t entries) {
  return graph.tensor(Tensor_attributes()
                          .set_uid(id)
                          .set_dim({entries, 1, 1, 1})
                          .set_stride({1, 1, 1, 1})
                          .set_data_type(fe::DataType_t::INT32));
}

// Dimensions, strides and offsets of a graph's inputs and outputs: [conversation, head, token,
// element]. cuDNN ignores the conversation stride, because the offsets give each beginning.
class Layout {
 public:
  Layout(Graph& graph, const CudnnShape& shape)
      : shape_(shape),
        query_lengths_(list_of_int32(graph, kQueryLengths, shape.padded.conversations)),
        key_lengths_(list_of_int32(graph, kKeyLengths, shape.padded.conversations)),
        queries_(list_of_int32(graph, kQueryOffsets, shape.padded.conversations + 1)),
        keys_(list_of_int32(graph, kKeyOffsets, shape.padded.conversations + 1)),
        values_(list_of_int32(graph, kValueOffsets, shape.padded.conversations + 1)),
        out_rows_(list_of_int32(graph, kOutOffsets, shape.padded.conversations + 1)),
        lse_rows_(list_of_int32(graph, kLseOffsets, shape.padded.conversations + 1)) {}

  const Tensor& query_lengths() const { return query_lengths_; }
  const Tensor& key_lengths() const { return key_lengths_; }

  void queries(Tensor_attributes& tensor, Id id) const {
    place(tensor, id, {shape_.heads.num_heads, shape_.heads.head_dim, shape_.heads.row()},
          queries_);
  }
  void keys(Tensor_attributes& tensor, Id id) const {
    place(tensor, id, {shape_.heads.num_key_value_heads, shape_.heads.head_dim, shape_.heads.row()},
          keys_);
  }
  void values(Tensor_attributes& tensor, Id id) const {
    place(tensor, id, {shape_.heads.num_key_value_heads, shape_.heads.head_dim, shape_.heads.row()},
          values_);
  }
  void out(Tensor_attributes& tensor, Id id) const {
    place(tensor, id, {shape_.heads.num_heads, shape_.heads.head_dim, shape_.heads.out_row()},
          out_rows_);
  }
  void lse(Tensor_attributes& tensor, Id id) const {
    place(tensor, id, {shape_.heads.num_heads, 1, shape_.heads.num_heads}, lse_rows_);
    tensor.set_data_type(fe::DataType_t::FLOAT);
  }

 private:
  struct Rows {
    int64_t heads, width, stride;  // heads per row, elements per head, elements per row
  };
  void place(Tensor_attributes& tensor, Id id, const Rows& rows, const Tensor& offsets) const {
    tensor.set_uid(id)
        .set_dim({shape_.padded.conversations, rows.heads, shape_.padded.longest, rows.width})
        .set_stride({shape_.padded.longest * rows.stride, rows.width, rows.stride, 1})
        .set_ragged_offset(offsets);
  }

  CudnnShape shape_;
  // Queries, keys and values share one list of offsets in memory. Each has its own graph tensor,
  // because a shared tensor is untested in cuDNN.
  Tensor query_lengths_, key_lengths_, queries_, keys_, values_, out_rows_, lse_rows_;
};

template <typename Place>
Tensor input(Graph& graph, const Place& place) {
  Tensor_attributes tensor;
  place(tensor);
  return graph.tensor(tensor);
}

// Sets the mask: token i sees token j of its conversation if i - window < j <= i.
template <typename Options>
void set_options(Options& options, const CudnnShape& shape, const Layout& layout) {
  options.set_attn_scale(shape.scale)
      .set_padding_mask(true)
      .set_seq_len_q(layout.query_lengths())
      .set_seq_len_kv(layout.key_lengths())
      .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
      .set_diagonal_band_right_bound(0);
  if (shape.window > 0) options.set_diagonal_band_left_bound(shape.window);
}

struct Inputs {
  Tensor query, key, value;
};

Inputs inputs_of(Graph& graph, const Layout& layout) {
  return {input(graph, [&](auto& tensor) { layout.queries(tensor, kQuery); }),
          input(graph, [&](auto& tensor) { layout.keys(tensor, kKey); }),
          input(graph, [&](auto& tensor) { layout.values(tensor, kValue); })};
}

void describe_forward(Graph& graph, const CudnnShape& shape) {
  const Layout layout(graph, shape);
  const Inputs in = inputs_of(graph, layout);
  fe::graph::SDPA_attributes options;
  options.set_generate_stats(true);
  set_options(options, shape, layout);
  const auto [out, lse] = graph.sdpa(in.query, in.key, in.value, options);
  layout.out(out->set_output(true), kOut);
  layout.lse(lse->set_output(true), kLse);
}

void describe_backward(Graph& graph, const CudnnShape& shape) {
  const Layout layout(graph, shape);
  const Inputs in = inputs_of(graph, layout);
  const Tensor out = input(graph, [&](auto& tensor) { layout.out(tensor, kOut); });
  const Tensor grad_out = input(graph, [&](auto& tensor) { layout.out(tensor, kGradOut); });
  const Tensor lse = input(graph, [&](auto& tensor) { layout.lse(tensor, kLse); });
  fe::graph::SDPA_backward_attributes options;
  set_options(options, shape, layout);
  const auto [query, key, value] =
      graph.sdpa_backward(in.query, in.key, in.value, out, grad_out, lse, options);
  layout.queries(query->set_output(true), kGradQuery);
  layout.keys(key->set_output(true), kGradKey);
  layout.values(value->set_output(true), kGradValue);
}

int64_t compile(Graph& graph, CudnnPass pass, const CudnnShape& shape, const CudnnTarget& target) {
  graph.set_io_data_type(shape.half ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  if (target.handle == nullptr) {
    auto device = std::make_shared<fe::DeviceProperties>();
    check(device->deserialize({target.device_json.begin(), target.device_json.end()}));
    graph.set_device_properties(device);
  }
  pass == CudnnPass::kForward ? describe_forward(graph, shape) : describe_backward(graph, shape);
  check(graph.validate());
  check(target.handle == nullptr ? graph.build_operation_graph()
                                 : graph.build_operation_graph(target.handle));
  check(graph.create_execution_plans({fe::HeurMode_t::A}));
  check(graph.check_support());
  check(graph.build_plans());
  int64_t workspace = 0;
  check(graph.get_workspace_size(workspace));
  return workspace;
}

using Pointers = std::unordered_map<int64_t, void*>;

// Adds the pointers to the three parts of the fused rows: queries, keys, values.
void add_heads(Pointers& to, void* rows, const CudnnShape& shape, Id query, Id key, Id value) {
  constexpr int64_t kItemsize = 2;
  auto* const bytes = static_cast<char*>(rows);
  const int64_t keys = kItemsize * shape.heads.out_row();
  const int64_t values = keys + kItemsize * shape.heads.num_key_value_heads * shape.heads.head_dim;
  to.insert({{query, bytes}, {key, bytes + keys}, {value, bytes + values}});
}

// cuDNN takes all pointers as void*; it only reads the lists.
void* mutable_list(const int32_t* list) { return const_cast<int32_t*>(list); }

Pointers pointers_of(const CudnnBuffers& buffers, const CudnnShape& shape) {
  Pointers all{{kOut, buffers.out},
               {kLse, buffers.lse},
               {kQueryLengths, mutable_list(buffers.lengths)},
               {kKeyLengths, mutable_list(buffers.lengths)},
               {kQueryOffsets, mutable_list(buffers.row_offsets)},
               {kKeyOffsets, mutable_list(buffers.row_offsets)},
               {kValueOffsets, mutable_list(buffers.row_offsets)},
               {kOutOffsets, mutable_list(buffers.out_offsets)},
               {kLseOffsets, mutable_list(buffers.lse_offsets)}};
  add_heads(all, buffers.qkv, shape, kQuery, kKey, kValue);
  return all;
}

}  // namespace

struct CudnnPlan::Compiled {
  Graph graph;
  int64_t workspace = 0;
};

CudnnPlan::CudnnPlan(CudnnPass pass, const CudnnShape& shape, const CudnnTarget& target)
    : pass_(pass), shape_(shape), compiled_(std::make_unique<Compiled>()) {
  compiled_->workspace = compile(compiled_->graph, pass, shape, target);
}

CudnnPlan::~CudnnPlan() = default;

int64_t CudnnPlan::workspace() const { return compiled_->workspace; }

void CudnnPlan::run(cudnnContext* handle, const CudnnBuffers& buffers) const {
  Pointers pointers = pointers_of(buffers, shape_);
  if (pass_ == CudnnPass::kBackward) {
    pointers.emplace(kGradOut, buffers.grad_out);
    add_heads(pointers, buffers.grad_qkv, shape_, kGradQuery, kGradKey, kGradValue);
  }
  check(compiled_->graph.execute(handle, pointers, buffers.workspace));
}

}  // namespace fastsft::cuda
