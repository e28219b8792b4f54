#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/error.h"

namespace fastsft {

// Storage of the master weights. kFloat32: whole float32 values. kSplit: only the low 16 bits,
// because the bfloat16 weight has the high 16 bits (ops/master/master.h).
enum class MasterDtype { kFloat32, kSplit };

// Storage of frozen linear layers: the compute dtype, or NF4 (ops/nf4/nf4.h). All other frozen
// weights have the compute dtype.
enum class FrozenDtype { kCompute, kNf4 };

// Scales of 8-bit floats in a block's linear layers. kNone: the compute dtype computes them.
// kTensorwise: a scale for each matrix. kRowwise: a scale for each token, and in forward for each
// row of a weight (model/fp8_products.h).
enum class Fp8Scaling { kNone, kTensorwise, kRowwise };

// Formats of 8-bit floats. kE4m3: all operands. kHybrid: output gradients are e5m2, all others
// e4m3.
enum class Fp8Format { kE4m3, kHybrid };

// Storage of parameters, gradients and optimizer state, the tiles that bound activations, and the
// precision of linear layers. Made once from the flags; the strategy, its plan and the memory plan
// read the same object. A new option needs a member here and a line in `state_option_fields`, which
// also exposes it to Python.
struct StateOptions {
  std::string strategy = "no_shard";
  std::string optimizer = "adamw";
  c10::ScalarType compute_dtype = c10::ScalarType::Float;
  c10::ScalarType grad_dtype = c10::ScalarType::Float;
  c10::ScalarType optim_dtype = c10::ScalarType::Float;
  MasterDtype master_dtype = MasterDtype::kFloat32;
  bool offload = false;
  FrozenDtype frozen_dtype = FrozenDtype::kCompute;
  bool sync_each_batch = true;
  // The most tokens for which a block's norms, linears and MLP compute at once; 0: a micro-batch.
  int64_t tile_tokens = 0;
  bool offload_inputs = false;
  // Ranks that share the tokens of a micro-batch (model/head_exchange.h).
  int64_t context_parallel_size = 1;
  Fp8Scaling fp8 = Fp8Scaling::kNone;
  Fp8Format fp8_format = Fp8Format::kE4m3;
  bool fp8_wgrad = false;  // weight gradients are products of 8 bits, too
  int64_t num_layers_at_start_in_bf16 = 0;
  int64_t num_layers_at_end_in_bf16 = 0;
  bool keep_fp8_weights = false;  // model/fp8_weights.h

  bool operator==(const StateOptions&) const = default;

  // True if the master weights are separate from the weights of the compute dtype.
  bool narrow() const { return compute_dtype != c10::ScalarType::Float; }
  bool split_master() const { return master_dtype == MasterDtype::kSplit; }

  // Return bytes per element: for a parameter in the compute dtype, for the accumulated gradient,
  // and for the master or its lower half.
  int64_t itemsize() const { return size_of(compute_dtype); }
  int64_t grad_itemsize() const { return size_of(grad_dtype); }
  int64_t master_itemsize() const { return narrow() ? (split_master() ? 2 : 4) : 0; }

  // True if GEMMs of a single rank may add to the accumulated gradient directly, which then has the
  // compute dtype.
  bool gradients_in_products() const { return grad_dtype == compute_dtype && grad_itemsize() < 4; }

  // Throws if options contradict each other.
  void check() const {
    require(tile_tokens >= 0, "tile_tokens is ", tile_tokens, ", expected 0 (no tiles) or more");
    require(context_parallel_size >= 1, "context_parallel_size is ", context_parallel_size,
            ", expected at least 1");
    require(!split_master() || compute_dtype == c10::ScalarType::BFloat16,
            "master_dtype is \"split\", the half of a float32 that bfloat16 leaves out, but "
            "compute_dtype is not bfloat16; use --bf16 True with it, or master_dtype float32");
    require(
        sync_each_batch || grad_dtype == c10::ScalarType::Float,
        "sync_each_batch is False, which keeps gradients whole in float32, but grad_dtype is not "
        "float32; leave one of them out");
    require(
        fp8 == Fp8Scaling::kNone || compute_dtype == c10::ScalarType::BFloat16,
        "fp8 quantises bfloat16, but compute_dtype is not bfloat16; use --bf16 True with --fp8");
    require(fp8 == Fp8Scaling::kNone || frozen_dtype == FrozenDtype::kCompute,
            "fp8 quantises weights of the compute dtype, and frozen_dtype is \"nf4\"; use --q_lora "
            "True or --fp8, not both");
    require(
        fp8 != Fp8Scaling::kTensorwise || tile_tokens == 0, "tile_tokens is ", tile_tokens,
        ", and a scale of tensorwise fp8 is that of all tokens; use rowwise, or leave tiles out");
    require(
        !fp8_wgrad || fp8 != Fp8Scaling::kNone,
        "fp8_wgrad is True, but fp8 is \"none\"; use --fp8 rowwise or tensorwise, or leave it out");
    require(
        !keep_fp8_weights || fp8 != Fp8Scaling::kNone,
        "keep_fp8_weights is True, but fp8 is \"none\"; use --fp8 rowwise or tensorwise, or leave "
        "it out");
    require(num_layers_at_start_in_bf16 >= 0 && num_layers_at_end_in_bf16 >= 0,
            "num_layers_at_start_in_bf16 and num_layers_at_end_in_bf16 are ",
            num_layers_at_start_in_bf16, " and ", num_layers_at_end_in_bf16,
            ", expected at least 0");
  }

 private:
  static int64_t size_of(c10::ScalarType dtype) {
    return static_cast<int64_t>(c10::elementSize(dtype));
  }
};

// A member of StateOptions, with its name and description.
template <typename Value>
struct StateOptionField {
  const char* name;
  Value StateOptions::*member;
  const char* text;
};

constexpr auto state_option_fields() {
  const auto field = []<typename Value>(const char* name, Value StateOptions::*member,
                                        const char* text) {
    return StateOptionField<Value>{name, member, text};
  };
  using Options = StateOptions;
  return std::tuple{
      field("strategy", &Options::strategy, "sharding strategy; on one rank all are no_shard"),
      field("optimizer", &Options::optimizer, "what updates the weights"),
      field("compute_dtype", &Options::compute_dtype, "of activations and of the weights in use"),
      field("grad_dtype", &Options::grad_dtype, "of the accumulated gradient"),
      field("optim_dtype", &Options::optim_dtype, "of the moments of adamw"),
      field("master_dtype", &Options::master_dtype, "of the masters of bfloat16 or float16"),
      field("offload", &Options::offload,
            "moments, and masters of narrow weights, are on the host"),
      field("frozen_dtype", &Options::frozen_dtype, "of a block's linears that nothing updates"),
      field("sync_each_batch", &Options::sync_each_batch,
            "sharded gradients are reduced in every micro-batch, not whole in float32 until the "
            "last"),
      field("tile_tokens", &Options::tile_tokens,
            "the most tokens that norms, linears and the MLP compute at once; 0: a micro-batch"),
      field("offload_inputs", &Options::offload_inputs,
            "inputs of blocks are on the host from forward to backward"),
      field("context_parallel_size", &Options::context_parallel_size,
            "ranks that share the tokens of a micro-batch"),
      field("fp8", &Options::fp8, "scales of 8-bit floats in the blocks' linears; none: no fp8"),
      field("fp8_format", &Options::fp8_format, "hybrid: output gradients are e5m2, not e4m3"),
      field("fp8_wgrad", &Options::fp8_wgrad, "weight gradients are products of 8 bits, too"),
      field("num_layers_at_start_in_bf16", &Options::num_layers_at_start_in_bf16,
            "blocks without fp8"),
      field("num_layers_at_end_in_bf16", &Options::num_layers_at_end_in_bf16, "blocks without fp8"),
      field("keep_fp8_weights", &Options::keep_fp8_weights,
            "weights in 8 bits are kept until they change")};
}

// Names and values of an option, from the most bytes to the fewest.
inline auto option_names(c10::ScalarType) {
  return std::array{std::pair{"float32", c10::ScalarType::Float},
                    std::pair{"bfloat16", c10::ScalarType::BFloat16},
                    std::pair{"float16", c10::ScalarType::Half}};
}
// True if the option may have this dtype. The range of float16 is too small for gradient sums and
// moments.
inline bool takes(std::string_view option, c10::ScalarType dtype) {
  return dtype != c10::ScalarType::Half || option == "compute_dtype";
}
template <typename Value>
bool takes(std::string_view, const Value&) {
  return true;
}

inline auto option_names(MasterDtype) {
  return std::array{std::pair{"float32", MasterDtype::kFloat32},
                    std::pair{"split", MasterDtype::kSplit}};
}
inline auto option_names(Fp8Scaling) {
  return std::array{std::pair{"none", Fp8Scaling::kNone},
                    std::pair{"tensorwise", Fp8Scaling::kTensorwise},
                    std::pair{"rowwise", Fp8Scaling::kRowwise}};
}
inline auto option_names(Fp8Format) {
  return std::array{std::pair{"e4m3", Fp8Format::kE4m3}, std::pair{"hybrid", Fp8Format::kHybrid}};
}
inline auto option_names(FrozenDtype) {
  return std::array{std::pair{"compute", FrozenDtype::kCompute},
                    std::pair{"nf4", FrozenDtype::kNf4}};
}

}  // namespace fastsft
