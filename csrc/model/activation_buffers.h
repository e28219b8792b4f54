#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/adapter_layout.h"
#include "model/config.h"
#include "model/op_memory.h"
#include "model/recompute.h"

namespace fastsft {

// The buffers that a micro-batch's computation needs.
enum class Buffer {
  kHidden,  // hidden states before each block and after the last block
  // A block's forward, in the order in which decoder_block.h computes it.
  kInputNorm,
  kInputRstd,
  kQkv,
  kHeadRstd,  // rstd of the query and key norms
  kRotated,   // query and key after norm and RoPE, in models with such norms
  kAttention,
  kLse,
  // Attention of a context rank's heads (head_exchange.h).
  kHeadsQkv,
  kHeadsOut,
  kExchange,         // parts of the exchange with all context ranks
  kAttentionBranch,  // output of attention before its branch norm
  kAttentionRstd,
  kProjected,
  kAttnResidual,
  kPostNorm,
  kPostRstd,
  kGateUp,
  kActivated,
  // Routing of a mixture (mixture.h).
  kRouterLogits,
  kRoutingWeights,
  kChosenExperts,
  kExpertOffsets,
  kExpertPairs,
  kExpertRows,
  kGrouped,
  kGradRoutingWeights,
  kGradRouterLogits,
  kMlpBranch,  // output of the MLP before its branch norm
  kMlpRstd,
  // Backward of a block.
  kGradBranch,  // gradient of a branch before its norm
  // Adapters: x A^T of each group (adapter_products.h) and its gradient.
  kQkvAdapters,
  kOutputAdapters,
  kGateUpAdapters,
  kDownAdapters,
  kGradAdapters,
  kDropped,  // an adapter's input after dropout, or the gradient of it
  kGradNormed,
  kGradAttention,
  kGradQkv,
  kGradHeadsOut,
  kGradHeadsQkv,
  // Operands of 8-bit products (fp8_products.h).
  kFp8Rows,
  kFp8RowScales,
  kFp8Columns,
  kFp8ColumnScales,
  kFp8Weight,
  kFp8WeightScales,
  // Labelled tokens, for the loss.
  kLabelled,
  kLabelledNorm,
  kLabelledRstd,
  kGradLabelledNorm,
  kHeadAdapters,
  kGradHeadAdapters,
  // Temporary memory of an op, and the embedding's noise.
  kLogits,
  kScratch,
  kNoise,
  kCount,
};
inline constexpr size_t kNumBuffers = static_cast<size_t>(Buffer::kCount);

// The time during which a buffer's content is needed.
enum class Lifetime {
  kAbsent,  // never
  kHidden,  // from forward to backward; one buffer per boundary between blocks
  kLayer,   // from forward to backward; one buffer per layer
  kBlock,   // while one block is computed
  kHead,    // while the loss is computed
  kOp,      // while one op runs
  kNoise,   // while noise is added to the embedding; not in the memory plan, since rare
};

// A training pass keeps the activations that backward needs. A forward-only pass needs two hidden
// states buffers and a single layer's activations.
enum class Pass { kTraining, kForwardOnly };

struct BufferRow {
  Buffer in;  // the buffer that owns the memory; buffers that share memory are never needed at once
  Lifetime lifetime = Lifetime::kAbsent;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;  // for example [tokens, columns], for the table's micro-batch

  int64_t numel() const;
};

// The options that determine all buffer sizes.
struct BufferOptions {
  at::ScalarType dtype = at::kFloat;  // dtype of activations
  Recompute recompute = Recompute::kSelective;
  at::DeviceType device = at::kCPU;
  int64_t threads = 1;  // threads that CPU ops use
  AdapterSizes adapters = {};
  // The most tokens for which norms, linears and the MLP compute at once; 0: all.
  int64_t tile_tokens = 0;
  bool offload_inputs = false;    // blocks' inputs wait on the host (offloaded_inputs.h)
  bool fp8 = false;               // a block's linear layers are computed in 8 bits
  bool fp8_wgrad = false;         // their weight gradients, too
  bool keep_fp8_weights = false;  // their weights are kept in 8 bits elsewhere (fp8_weights.h)
  int64_t context_ranks = 1;      // ranks that share a micro-batch with context_tokens
};

// All buffer sizes for micro-batches up to `shape`. ActivationBuffers allocates by this table, and
// the memory plan sums it.
class BufferTable {
 public:
  BufferTable(const ModelConfig& config, const BufferOptions& options, const MicroBatchSize& shape,
              Pass pass = Pass::kTraining);

  const BufferRow& operator[](Buffer buffer) const { return rows_[static_cast<size_t>(buffer)]; }
  // Returns the buffers that own memory.
  std::vector<Buffer> owners() const;
  // For an owner: `capacity` returns the element count of its largest buffer, and `copies` how many
  // times its memory exists.
  int64_t capacity(Buffer owner) const;
  int64_t copies(Buffer owner) const;
  // Return the bytes of an owner's copies, or of all owners with this lifetime.
  int64_t nbytes(Buffer owner) const;
  int64_t nbytes(Lifetime lifetime) const;

 private:
  void add(Buffer buffer, Lifetime lifetime, at::ScalarType dtype, std::vector<int64_t> sizes);
  void add(Buffer buffer, Buffer in, at::ScalarType dtype, std::vector<int64_t> sizes);
  void add_attention(const ModelConfig& config, const BufferOptions& options, int64_t tokens);
  void add_exchange(const ModelConfig& config, const BufferOptions& options,
                    const MicroBatchSize& shape);
  void add_branches(const ModelConfig& config, const BufferOptions& options, int64_t tokens);
  // Places the buffers of labelled tokens in memory that is free while the loss is computed.
  void place_labelled_in_block();
  void add_mlp(const ModelConfig& config, const BufferOptions& options, int64_t tokens);
  void add_mixture(const ModelConfig& config, const BufferOptions& options, int64_t tokens);
  void add_fp8(const ModelConfig& config, const BufferOptions& options);
  void add_adapters(const ModelConfig& config, const BufferOptions& options,
                    const MicroBatchSize& shape);
  void add_head(const ModelConfig& config, const BufferOptions& options,
                const MicroBatchSize& shape);

  std::array<BufferRow, kNumBuffers> rows_;
  int64_t layers_, hidden_copies_;
  int64_t tile_rows_;  // tokens of the largest tile
};

// The memory of a BufferTable, on one device. It grows to the largest micro-batch so far and is
// reused, so after warm-up a step allocates nothing large. A buffer contains the values that the
// last user of its memory wrote.
class ActivationBuffers {
 public:
  // `options.threads` is ignored: ops use torch's current number.
  ActivationBuffers(const ModelConfig& config, const BufferOptions& options, at::Device device);

  // Allocates all training memory for micro-batches of up to `shape`.
  void reserve(const MicroBatchSize& shape);
  // Sets the sizes that later calls of `get` return.
  void begin(const MicroBatchSize& shape, Pass pass);
  // Returns a buffer with its size in the table. `layer` selects a copy if the buffer has several.
  at::Tensor get(Buffer buffer, int64_t layer = 0);
  bool has(Buffer buffer) const { return table_[buffer].lifetime != Lifetime::kAbsent; }
  int64_t nbytes() const;
  // Changes the option for later micro-batches.
  void set_tile_tokens(int64_t most) { options_.tile_tokens = most; }

 private:
  BufferTable table_of(const MicroBatchSize& shape, Pass pass) const;

  ModelConfig config_;
  BufferOptions options_;
  at::Device device_;
  BufferTable table_;
  std::array<std::vector<at::Tensor>, kNumBuffers> memory_;  // indexed by owner
};

}  // namespace fastsft
