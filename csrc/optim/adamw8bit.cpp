#include "ops/adamw8bit/adamw8bit.h"

#include <ATen/ops/zeros.h>

#include <map>

#include "ops/adamw/adamw.h"
#include "optim/optimizer.h"

namespace fastsft {
namespace {

constexpr int64_t kLeast8bit = 4096;  // smaller tensors keep float32 moments

// Returns true if the tensor's moments have 8 bits. Embeddings and small tensors keep 32 bits, as
// in transformers' Trainer with bitsandbytes.
bool has_8bit(const ParamSlot& slot) { return !slot.embedding && slot.numel() >= kLeast8bit; }

enum Kept8bit : size_t { kState1, kState2, kAbsmax1, kAbsmax2, kExpAvg, kExpAvgSq };

StateSpecs moments_8bit(const ParamUnit& unit, const StateOptions&) {
  std::vector<ElementRange> narrow, wide;
  for (const auto& slot : unit.slots()) {
    if (slot.held) continue;
    (has_8bit(slot) ? narrow : wide).push_back({slot.offset, slot.offset + slot.numel()});
  }
  const auto of = [](const char* name, c10::ScalarType dtype, const auto& segments,
                     int64_t block) -> StateSpec {
    return {.name = name, .dtype = dtype, .segments = segments, .block = block};
  };
  return {of("state1", at::kByte, narrow, 1),
          of("state2", at::kByte, narrow, 1),
          of("absmax1", at::kFloat, narrow, kQuantBlock),
          of("absmax2", at::kFloat, narrow, kQuantBlock),
          of("exp_avg", at::kFloat, wide, 1),
          of("exp_avg_sq", at::kFloat, wide, 1)};
}

// The part of a tensor that this rank owns. `first_edge` and `last_edge` index `edges_` for a first
// or last quantization block that the rank shares with other ranks; -1 if it shares none.
struct Part8bit {
  size_t unit;
  const ParamSlot* slot;
  ElementRange elements;
  int64_t first_edge = -1, last_edge = -1;

  int64_t first() const { return elements.begin - slot->offset; }
};

// bitsandbytes' AdamW8bit (ops/adamw8bit/adamw8bit.h). Ranks that share a quantization block first
// agree on its largest magnitudes, so the 8-bit codes are the same as on a single rank.
class AdamW8bit : public Optimizer {
 public:
  explicit AdamW8bit(Strategy& strategy)
      : strategy_(strategy), levels_(adamw8bit_levels(strategy.device())) {
    for (size_t unit = 0; unit < strategy.states().size(); ++unit) add_unit(unit);
    const auto options = at::TensorOptions().dtype(at::kFloat).device(strategy.device());
    edges_ = at::zeros({num_edges_, 2}, options);
  }

  // The edges are not counted: they take 8 bytes for each block that several ranks share.
  int64_t nbytes() const override { return static_cast<int64_t>(levels_.nbytes()); }

  void update(const OptimizerOptions& options, const at::Tensor& scalars) override {
    if (num_edges_ > 0) agree_on_edges(options, scalars);
    size_t next = 0;
    for (size_t unit = 0; unit < strategy_.states().size(); ++unit) {
      const UnitState state = strategy_.begin_update(unit);
      for (; next < parts_.size() && parts_[next].unit == unit; ++next) {
        update_part(parts_[next], state, options, scalars);
      }
      strategy_.end_update(unit);
    }
    strategy_.finish_update();
  }

 private:
  // Returns the index in `edges_` of each quantization block that a rank boundary cuts. All ranks
  // compute the same indices.
  std::map<int64_t, int64_t> cut_blocks(const UnitState& state, const ParamSlot& slot) {
    std::map<int64_t, int64_t> numbers;
    if (strategy_.replicated() || !has_8bit(slot)) return numbers;
    const int64_t size = state.end - state.begin;
    for (int rank = 1; rank < strategy_.shards().world_size(); ++rank) {
      const int64_t cut = size * rank - slot.offset;
      if (cut <= 0 || cut >= slot.numel() || cut % kQuantBlock == 0) continue;
      if (numbers.emplace(cut / kQuantBlock, num_edges_).second) ++num_edges_;
    }
    return numbers;
  }

  void add_unit(size_t unit) {
    const UnitState& state = strategy_.states()[unit];
    for (const auto& slot : state.unit->slots()) {
      if (slot.held) continue;
      const auto cuts = cut_blocks(state, slot);
      const auto elements =
          ElementRange{slot.offset, slot.offset + slot.numel()}.intersection(state.range());
      if (elements.size() == 0) continue;
      Part8bit part{.unit = unit, .slot = &slot, .elements = elements};
      const auto number = [&](int64_t element) {
        const auto found = cuts.find(element / kQuantBlock);
        return found == cuts.end() ? -1 : found->second;
      };
      part.first_edge = number(part.first());
      part.last_edge = number(part.first() + elements.size() - 1);
      parts_.push_back(part);
    }
  }

  std::optional<at::Tensor> edge(int64_t number) const {
    if (number < 0) return std::nullopt;
    return edges_[number];
  }

  void agree_on_edges(const OptimizerOptions& options, const at::Tensor& scalars) {
    edges_.zero_();
    for (const Part8bit& part : parts_) {
      const int64_t first = part.first(), last = first + part.elements.size() - 1;
      if (part.first_edge >= 0) add_maxima(part, first, part.first_edge, options, scalars);
      if (part.last_edge >= 0 && part.last_edge != part.first_edge) {
        add_maxima(part, last, part.last_edge, options, scalars);
      }
    }
    strategy_.shards()
        .all_reduce_max(edges_.view({-1}), "largest moments_8bit of shared blocks")
        ->wait();
  }

  // Computes the largest magnitudes of both new moments in one quantization block, over the part's
  // elements only, and merges them into `edges_[number]`. The block contains the tensor's element
  // `element`.
  void add_maxima(const Part8bit& part, int64_t element, int64_t number,
                  const OptimizerOptions& options, const at::Tensor& scalars) {
    const int64_t begin = part.slot->offset + element / kQuantBlock * kQuantBlock;
    const ElementRange here = part.elements.intersection({begin, begin + kQuantBlock});
    const UnitState& state = strategy_.states()[part.unit];  // on the host if state is offloaded
    const UpdateRange range = range_of(strategy_, part.unit, state, here);
    const auto on_device = [&](Kept8bit kept) { return range.values[kept].to(strategy_.device()); };
    adamw8bit_maxima(range.grad, on_device(kState1), on_device(kState2), on_device(kAbsmax1),
                     on_device(kAbsmax2), levels_, scalars, options.beta1, options.beta2,
                     edges_[number]);
  }

  void update_part(const Part8bit& part, const UnitState& state, const OptimizerOptions& options,
                   const at::Tensor& scalars) {
    const UpdateRange range = range_of(strategy_, part.unit, state, part.elements);
    const std::vector<at::Tensor>& kept = range.values;
    const double decay = part.slot->decay ? options.weight_decay : 0.0;
    if (!has_8bit(*part.slot)) {
      adamw(range.master, range.copy, range.grad, kept[kExpAvg], kept[kExpAvgSq], scalars,
            options.learning_rate, options.beta1, options.beta2, options.eps, decay, 0, 0);
      return;
    }
    adamw8bit(range.master, range.copy, range.grad, kept[kState1], kept[kState2], kept[kAbsmax1],
              kept[kAbsmax2], levels_, scalars, options.learning_rate, options.beta1, options.beta2,
              options.eps, decay, part.first(), edge(part.first_edge), edge(part.last_edge));
  }

  Strategy& strategy_;
  at::Tensor levels_, edges_;
  int64_t num_edges_ = 0;
  std::vector<Part8bit> parts_;  // sorted by unit
};

const bool kAdamW8bitRegistered = OptimizerRegistry::instance().add(
    "adamw_8bit", {.make = make_optimizer<AdamW8bit>,
                   .state = moments_8bit,
                   .buffers = [](const auto&) -> int64_t { return 4 * 4 * kQuantLevels; }});

}  // namespace
}  // namespace fastsft
