#include "train/engine_model.h"

#include "core/error.h"
#include "model/causal_lm.h"

namespace fastsft {

std::unique_ptr<Model> make_model(const std::string& config_json, const EngineOptions& options,
                                  RankGroups& groups, std::unique_ptr<Model> generic) {
  const StateOptions& state = options.state;
  Communicator& context = groups.context();
  require(state.context_parallel_size == context.world_size(), "context_parallel_size is ",
          state.context_parallel_size, ", and the context group has ", context.world_size(),
          " ranks; give a group of as many");
  if (generic) {
    require(state.fp8 == Fp8Scaling::kNone, kNoGenericFp8);
    require(context.world_size() == 1, kNoGenericContext);
    return generic;
  }
  const ModelConfig config = parse_model_config(config_json);
  return std::make_unique<CausalLM>(config, options.adapters,
                                    ComputeOptions{.dtype = state.compute_dtype,
                                                   .device = options.device,
                                                   .recompute = parse_recompute(options.recompute),
                                                   .max_positions = options.max_positions,
                                                   .tile_tokens = state.tile_tokens,
                                                   .offload_inputs = state.offload_inputs,
                                                   .fp8 = Fp8Recipe::of(state, config),
                                                   .keep_fp8_weights = state.keep_fp8_weights,
                                                   .context_ranks = &context});
}

}  // namespace fastsft
