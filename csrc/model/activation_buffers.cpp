#include "model/activation_buffers.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "model/embedding_noise.h"
#include "model/fp8_products.h"
#include "model/head_exchange.h"
#include "ops/linear_cross_entropy/logits_workspace.h"

namespace fastsft {

ActivationBuffers::ActivationBuffers(const ModelConfig& config, const BufferOptions& options,
                                     at::Device device)
    : config_(config), options_(options), device_(device), table_(table_of({}, Pass::kTraining)) {}

BufferTable ActivationBuffers::table_of(const MicroBatchSize& shape, Pass pass) const {
  BufferOptions options = options_;
  options.threads = at::get_num_threads();
  return {config_, options, shape, pass};
}

void ActivationBuffers::reserve(const MicroBatchSize& shape) {
  begin(shape, Pass::kTraining);
  for (const Buffer owner : table_.owners()) {
    if (table_[owner].lifetime == Lifetime::kNoise) continue;
    for (int64_t copy = 0; copy < table_.copies(owner); ++copy) get(owner, copy);
  }
}

void ActivationBuffers::begin(const MicroBatchSize& shape, Pass pass) {
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
    memory = at::Tensor();  // free the old memory before the larger allocation
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

int64_t BufferRow::numel() const {
  if (lifetime == Lifetime::kAbsent) return 0;
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  return product;
}

BufferTable::BufferTable(const ModelConfig& c, const BufferOptions& options,
                         const MicroBatchSize& shape, Pass pass)
    : layers_(1),
      hidden_copies_(2),
      tile_rows_(options.tile_tokens > 0 ? std::min(options.tile_tokens, shape.tokens)
                                         : shape.tokens) {
  if (pass ==
      Pass::kTraining) {  // layer n uses copy n % layers_; only layers with a backward keep theirs
    const int64_t kept = c.num_layers - options.adapters.first_layer;
    if (options.recompute != Recompute::kBlock) layers_ = std::max<int64_t>(kept, 1);
    hidden_copies_ = options.offload_inputs ? 3 : std::max<int64_t>(kept + 1, 2);
  }
  const int64_t tokens = shape.tokens;
  add(Buffer::kHidden, Lifetime::kHidden, options.dtype, {tokens, c.hidden_size});
  add_attention(c, options, tokens);
  add_mlp(c, options, tokens);
  if (shape.context_tokens > 0) add_exchange(c, options, shape);
  if (c.is_mixture()) add_mixture(c, options, tokens);
  if (c.branch_norms) add_branches(c, options, tokens);
  if (options.fp8) add_fp8(c, options);
  add_adapters(c, options, shape);
  add_head(c, options, shape);
  const int64_t floats = options.device == at::kCPU
                             ? plan_scratch(c, options.dtype, shape, tile_rows_, options.threads,
                                            options.adapters, options.fp8, options.fp8_wgrad)
                             : 0;
  add(Buffer::kScratch, Lifetime::kOp, at::kFloat, {floats});
  add(Buffer::kNoise, Lifetime::kNoise, at::kFloat, {kNoiseRows, c.hidden_size});
}

void BufferTable::add_attention(const ModelConfig& c, const BufferOptions& options,
                                int64_t tokens) {
  const auto dtype = options.dtype;
  const bool keeps_norms = options.recompute == Recompute::kNone;
  add(Buffer::kInputNorm, keeps_norms ? Lifetime::kLayer : Lifetime::kBlock, dtype,
      {keeps_norms ? tokens : tile_rows_, c.hidden_size});
  add(Buffer::kInputRstd, Lifetime::kLayer, at::kFloat, {tokens});
  add(Buffer::kQkv, Lifetime::kLayer, dtype, {tokens, c.qkv_size()});
  if (c.qk_norm) {
    const int64_t heads = c.num_heads + c.num_key_value_heads;
    add(Buffer::kRotated, Lifetime::kBlock, dtype, {tokens, c.qkv_size()});
    add(Buffer::kHeadRstd, Lifetime::kBlock, at::kFloat, {tokens, heads});
  }
  add(Buffer::kAttention, Lifetime::kLayer, dtype, {tokens, c.query_size()});
  add(Buffer::kLse, Lifetime::kLayer, at::kFloat, {c.num_heads, tokens});
  add(Buffer::kProjected, Lifetime::kBlock, dtype, {tile_rows_, c.hidden_size});
  add(Buffer::kGradNormed, /*in=*/Buffer::kProjected, dtype, {tile_rows_, c.hidden_size});
  add(Buffer::kGradAttention, /*in=*/Buffer::kProjected, dtype, {tokens, c.query_size()});
  add(Buffer::kGradQkv, Lifetime::kBlock, dtype, {tokens, c.qkv_size()});
}

// Attention reads other ranks' tokens. Nothing reads this rank's qkv after they were exchanged,
// except that backward reads the query and key norms' inputs.
void BufferTable::add_exchange(const ModelConfig& c, const BufferOptions& options,
                               const MicroBatchSize& shape) {
  const ContextHeads heads(c, options.context_ranks);
  const int64_t all = shape.context_tokens;
  const auto dtype = options.dtype;
  if (!c.qk_norm) add(Buffer::kQkv, Lifetime::kBlock, dtype, {shape.tokens, c.qkv_size()});
  add(Buffer::kHeadsQkv, Lifetime::kLayer, dtype, {all, heads.qkv_size()});
  add(Buffer::kHeadsOut, Lifetime::kLayer, dtype, {all, heads.query_size()});
  add(Buffer::kLse, Lifetime::kLayer, at::kFloat, {heads.num_heads(), all});
  add(Buffer::kGradHeadsOut, Lifetime::kBlock, dtype, {all, heads.query_size()});
  add(Buffer::kGradHeadsQkv, Lifetime::kBlock, dtype, {all, heads.qkv_size()});
  const std::vector<int64_t> parts = {HeadExchange::memory_size(heads, shape.tokens)};
  // Attention runs before a block's MLP in forward, and after it in backward.
  if ((*this)[Buffer::kGateUp].lifetime == Lifetime::kBlock) {
    add(Buffer::kExchange, /*in=*/Buffer::kGateUp, dtype, parts);
  } else {
    add(Buffer::kExchange, Lifetime::kBlock, dtype, parts);
  }
}

void BufferTable::add_branches(const ModelConfig& c, const BufferOptions& options, int64_t tokens) {
  for (const auto branch : {Buffer::kAttentionBranch, Buffer::kMlpBranch})
    add(branch, Lifetime::kLayer, options.dtype, {tokens, c.hidden_size});
  for (const auto rstd : {Buffer::kAttentionRstd, Buffer::kMlpRstd})
    add(rstd, Lifetime::kLayer, at::kFloat, {tokens});
  add(Buffer::kGradBranch, Lifetime::kBlock, options.dtype, {tile_rows_, c.hidden_size});
}

void BufferTable::add_mlp(const ModelConfig& c, const BufferOptions& options, int64_t tokens) {
  const auto dtype = options.dtype;
  add(Buffer::kAttnResidual, Lifetime::kLayer, dtype, {tokens, c.hidden_size});
  add(Buffer::kPostRstd, Lifetime::kLayer, at::kFloat, {tokens});
  const bool recomputes =
      options.recompute == Recompute::kGateUp || options.recompute == Recompute::kBlock;
  add(Buffer::kGateUp, recomputes ? Lifetime::kBlock : Lifetime::kLayer, dtype,
      {c.mlp_rows(recomputes ? tile_rows_ : tokens), 2 * c.intermediate_size});
  const int64_t rows = options.recompute == Recompute::kNone ? tokens : tile_rows_;
  const std::vector<int64_t> norm = {rows, c.hidden_size};
  const std::vector<int64_t> activated = {c.mlp_rows(rows), c.intermediate_size};
  if (options.recompute == Recompute::kNone) {
    add(Buffer::kPostNorm, Lifetime::kLayer, dtype, norm);
    // A mixture's backward computes it next to its gradient, from gate_up.
    add(Buffer::kActivated, c.is_mixture() ? Lifetime::kBlock : Lifetime::kLayer, dtype, activated);
  } else {  // recomputed in backward, in the memory of buffers that are free by then
    add(Buffer::kPostNorm, /*in=*/Buffer::kInputNorm, dtype, norm);
    add(Buffer::kActivated, /*in=*/Buffer::kGradQkv, dtype, activated);
  }
}

void BufferTable::add_mixture(const ModelConfig& c, const BufferOptions& options, int64_t tokens) {
  const int64_t experts = c.mixture.experts, chosen = c.mixture.chosen;
  add(Buffer::kRouterLogits, Lifetime::kLayer, options.dtype, {tokens, experts});
  add(Buffer::kRoutingWeights, Lifetime::kLayer, options.dtype, {tokens, chosen});
  add(Buffer::kChosenExperts, Lifetime::kLayer, at::kInt, {tokens, chosen});
  add(Buffer::kExpertOffsets, Lifetime::kLayer, at::kInt, {experts + 1});
  add(Buffer::kExpertPairs, Lifetime::kLayer, at::kInt, {tokens * chosen});
  add(Buffer::kExpertRows, Lifetime::kLayer, at::kInt, {tokens, chosen});
  add(Buffer::kGrouped, Lifetime::kBlock, options.dtype, {tokens * chosen, c.hidden_size});
  add(Buffer::kGradRoutingWeights, Lifetime::kBlock, at::kFloat, {tokens, chosen});
  add(Buffer::kGradRouterLogits, Lifetime::kBlock, options.dtype, {tokens, experts});
}

void BufferTable::add_fp8(const ModelConfig& c, const BufferOptions& options) {
  // Elements: the widest row, the widest input row, the largest matrix
  int64_t widest = 0, widest_input = 0, largest = 0;
  for (const LinearGroup group : kBlockLinearGroups) {
    const auto linears = linears_of(c, group);
    const int64_t inputs = linears.front().inputs, outputs = outputs_of(linears);
    widest = std::max({widest, inputs, outputs});
    widest_input = std::max(widest_input, inputs);
    largest = std::max(largest, inputs * outputs);
  }
  const int64_t rows = options.fp8_wgrad ? fp8_padded(tile_rows_) : tile_rows_;
  add(Buffer::kFp8Rows, Lifetime::kBlock, at::kByte, {rows * widest});
  // Output gradients are transposed in the memory of rows.
  add(Buffer::kFp8RowScales, Lifetime::kBlock, at::kFloat,
      {options.fp8_wgrad ? std::max(rows, widest) : rows});
  if (options.fp8_wgrad) {
    add(Buffer::kFp8Columns, Lifetime::kBlock, at::kByte, {rows * widest_input});
    add(Buffer::kFp8ColumnScales, Lifetime::kBlock, at::kFloat, {widest_input});
  }
  if (options.keep_fp8_weights) return;
  add(Buffer::kFp8Weight, Lifetime::kBlock, at::kByte, {largest});
  add(Buffer::kFp8WeightScales, Lifetime::kBlock, at::kFloat, {widest});
}

void BufferTable::add_adapters(const ModelConfig& c, const BufferOptions& options,
                               const MicroBatchSize& shape) {
  const AdapterSizes& sizes = options.adapters;
  const std::array buffers = {Buffer::kQkvAdapters, Buffer::kOutputAdapters,
                              Buffer::kGateUpAdapters, Buffer::kDownAdapters};
  for (size_t group = 0; group < buffers.size(); ++group) {
    if (sizes.ranks[group] == 0) continue;
    add(buffers[group], Lifetime::kLayer, options.dtype, {shape.tokens, sizes.ranks[group]});
  }
  if (const int64_t rank = sizes.largest_block_rank(); rank > 0) {
    add(Buffer::kGradAdapters, Lifetime::kBlock, options.dtype, {tile_rows_, rank});
  }
  if (sizes.dropout) {  // also of the head's adapters, whose inputs are all labelled tokens
    const int64_t widest = std::max({c.hidden_size, c.query_size(), c.intermediate_size});
    const int64_t of_head = sizes.rank(AdapterGroup::kHead) > 0 ? shape.labels * c.hidden_size : 0;
    add(Buffer::kDropped, Lifetime::kBlock, options.dtype,
        {std::max(tile_rows_ * widest, of_head)});
  }
  const int64_t rank = sizes.rank(AdapterGroup::kHead);
  if (rank == 0) return;
  for (const auto buffer : {Buffer::kHeadAdapters, Buffer::kGradHeadAdapters})
    add(buffer, Lifetime::kHead, options.dtype, {shape.labels, rank});
}

void BufferTable::add_head(const ModelConfig& c, const BufferOptions& options,
                           const MicroBatchSize& shape) {
  const std::vector<int64_t> rows = {shape.labels, c.hidden_size};
  for (const auto buffer : {Buffer::kLabelled, Buffer::kLabelledNorm, Buffer::kGradLabelledNorm})
    add(buffer, Lifetime::kHead, options.dtype, rows);
  if (options.recompute == Recompute::kBlock) place_labelled_in_block();
  add(Buffer::kLabelledRstd, Lifetime::kHead, at::kFloat, {shape.labels});
  add(Buffer::kLogits, Lifetime::kOp, at::kByte,
      {logits_workspace_bytes(options.device, options.dtype, c.vocab_size, shape.labels)});
}

// Backward computes all of a block again, so nothing of a block is needed at that time.
void BufferTable::place_labelled_in_block() {
  const auto place = [&](Buffer buffer, Buffer in) {
    rows_[static_cast<size_t>(buffer)].in = in;
    rows_[static_cast<size_t>(buffer)].lifetime = (*this)[in].lifetime;
  };
  place(Buffer::kLabelled, Buffer::kQkv);
  place(Buffer::kLabelledNorm, Buffer::kProjected);
  place(Buffer::kGradLabelledNorm, Buffer::kGradQkv);
}

void BufferTable::add(Buffer buffer, Lifetime lifetime, at::ScalarType dtype,
                      std::vector<int64_t> sizes) {
  rows_[static_cast<size_t>(buffer)] = {buffer, lifetime, dtype, std::move(sizes)};
}

void BufferTable::add(Buffer buffer, Buffer in, at::ScalarType dtype, std::vector<int64_t> sizes) {
  rows_[static_cast<size_t>(buffer)] = {in, (*this)[in].lifetime, dtype, std::move(sizes)};
}

std::vector<Buffer> BufferTable::owners() const {
  std::vector<Buffer> result;
  for (size_t i = 0; i < kNumBuffers; ++i) {
    const auto buffer = static_cast<Buffer>(i);
    if (rows_[i].lifetime != Lifetime::kAbsent && rows_[i].in == buffer) result.push_back(buffer);
  }
  return result;
}

int64_t BufferTable::capacity(Buffer owner) const {
  int64_t most = 0;
  for (const auto& row : rows_) {
    if (row.in == owner) most = std::max(most, row.numel());
  }
  return most;
}

int64_t BufferTable::copies(Buffer owner) const {
  const Lifetime lifetime = (*this)[owner].lifetime;
  if (lifetime == Lifetime::kHidden) return hidden_copies_;
  return lifetime == Lifetime::kLayer ? layers_ : 1;
}

int64_t BufferTable::nbytes(Buffer owner) const {
  const auto itemsize = static_cast<int64_t>(c10::elementSize((*this)[owner].dtype));
  return copies(owner) * capacity(owner) * itemsize;
}

int64_t BufferTable::nbytes(Lifetime lifetime) const {
  int64_t sum = 0;
  for (const Buffer owner : owners()) {
    if ((*this)[owner].lifetime == lifetime) sum += nbytes(owner);
  }
  return sum;
}

}  // namespace fastsft
