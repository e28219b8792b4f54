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

// What a micro-batch is computed in.
enum class Buffer {
  kHidden,  // the residual stream: before each block, and after the last one
  // Of a block, in the order of its forward (decoder_block.h).
  kInputNorm,
  kInputRstd,
  kQkv,
  kHeadRstd,  // of the norms of query and key
  kRotated,   // query and key after norm and rope, where the model has such norms
  kAttention,
  kLse,
  kAttentionBranch,  // what attention gives, where a norm reads it before the stream
  kAttentionRstd,
  kProjected,
  kAttnResidual,
  kPostNorm,
  kPostRstd,
  kGateUp,
  kActivated,
  kMlpBranch,  // likewise of the MLP
  kMlpRstd,
  // Of its backward.
  kGradBranch,  // of a branch before its norm
  kRecomputed,  // the block's result, which is made once more with its activations
  // Of adapters: what A makes of each input (adapter_products.h), and a gradient of that.
  kQkvAdapters,
  kOutputAdapters,
  kGateUpAdapters,
  kDownAdapters,
  kGradAdapters,
  kDropped,  // their input with some of it dropped, or a gradient of that
  kGradNormed,
  kGradAttention,
  kGradQkv,
  // Of labelled tokens.
  kLabelled,
  kLabelledNorm,
  kLabelledRstd,
  kGradLabelledNorm,
  kHeadAdapters,
  kGradHeadAdapters,
  // Inside an op, and the embedding's noise.
  kLogits,
  kScratch,
  kNoise,
  kCount,
};
inline constexpr size_t kNumBuffers = static_cast<size_t>(Buffer::kCount);

// How long a buffer's content is needed.
enum class Lifetime {
  kAbsent,  // never
  kHidden,  // of one boundary between blocks, from forward to backward
  kLayer,   // of one layer, from forward to backward
  kBlock,   // while one block is computed
  kHead,    // while the loss is computed
  kOp,      // while one op runs
  kNoise,   // while the embedding gets its noise, which few runs have: not planned
};

// A training pass keeps what backward needs; one without a backward needs two streams and one
// layer.
enum class Pass { kTraining, kForwardOnly };

struct BufferRow {
  Buffer in;  // in its own memory, or in that of another buffer: they are never needed at once
  Lifetime lifetime = Lifetime::kAbsent;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;  // [tokens, columns] and the like, for the table's micro-batch

  int64_t numel() const;
};

// What the sizes of all buffers follow from.
struct BufferOptions {
  at::ScalarType dtype = at::kFloat;  // of activations
  Recompute recompute = Recompute::kSelective;
  at::DeviceType device = at::kCPU;
  int64_t threads = 1;  // of ops on the CPU
  AdapterSizes adapters = {};
};

// Every buffer for micro-batches of up to `shape`: ActivationBuffers allocates from it, the memory
// plan sums it.
class BufferTable {
 public:
  BufferTable(const ModelConfig& config, const BufferOptions& options, const MicroBatchSize& shape,
              Pass pass = Pass::kTraining);

  const BufferRow& operator[](Buffer buffer) const { return rows_[static_cast<size_t>(buffer)]; }
  // Buffers that have memory of their own.
  std::vector<Buffer> owners() const;
  // Of an owner: elements of the largest buffer in its memory, and how many such memories are held.
  int64_t capacity(Buffer owner) const;
  int64_t copies(Buffer owner) const;
  // Bytes of all copies of an owner, and of all owners of one lifetime.
  int64_t nbytes(Buffer owner) const;
  int64_t nbytes(Lifetime lifetime) const;

 private:
  void add(Buffer buffer, Lifetime lifetime, at::ScalarType dtype, std::vector<int64_t> sizes);
  void add(Buffer buffer, Buffer in, at::ScalarType dtype, std::vector<int64_t> sizes);
  void add_attention(const ModelConfig& config, const BufferOptions& options, int64_t tokens);
  void add_branches(const ModelConfig& config, const BufferOptions& options, int64_t tokens);
  void add_mlp(const ModelConfig& config, const BufferOptions& options, int64_t tokens);
  void add_adapters(const ModelConfig& config, const BufferOptions& options,
                    const MicroBatchSize& shape);
  void add_head(const ModelConfig& config, const BufferOptions& options,
                const MicroBatchSize& shape);

  std::array<BufferRow, kNumBuffers> rows_;
  int64_t layers_, hidden_copies_;
};

// The memory of a BufferTable. It grows to the largest micro-batch seen and is used again: after
// warm-up a step allocates nothing large. All on one device. A buffer's content is what the last
// user of its memory left.
class ActivationBuffers {
 public:
  ActivationBuffers(const ModelConfig& config, at::ScalarType dtype, Recompute recompute,
                    at::Device device, const AdapterSizes& adapters = {});

  // Makes all memory of training for micro-batches of up to `shape`.
  void reserve(const MicroBatchSize& shape);
  // The sizes of the following `get`s.
  void begin(const MicroBatchSize& shape, Pass pass);
  // With the sizes of its row. `layer` counts where the table has several copies of the buffer.
  at::Tensor get(Buffer buffer, int64_t layer = 0);
  int64_t nbytes() const;

 private:
  BufferTable table_of(const MicroBatchSize& shape, Pass pass) const;

  ModelConfig config_;
  at::ScalarType dtype_;
  Recompute recompute_;
  at::Device device_;
  AdapterSizes adapters_;
  BufferTable table_;
  std::array<std::vector<at::Tensor>, kNumBuffers> memory_;  // of owners
};

}  // namespace fastsft
