#include "ops/adafactor/adafactor.h"

#include <ATen/ops/zeros.h>

#include "optim/optimizer.h"

namespace fastsft {
namespace {

// A trained tensor seen as a sequence of matrices; a vector counts as one row.
struct Shape {
  int64_t matrices, rows, columns;
  bool factored;

  explicit Shape(const ParamSlot& slot) {
    const auto& shape = slot.shape;
    factored = shape.size() >= 2;
    columns = shape.empty() ? 1 : shape.back();
    rows = factored ? shape[shape.size() - 2] : 1;
    matrices = factored ? slot.numel() / (rows * columns) : 1;
  }
  int64_t row_values() const { return factored ? matrices * rows : 0; }
  int64_t column_values() const { return matrices * columns; }
};

enum KeptAverage : size_t { kRow, kColumn, kVector };

// Returns the sizes of the moving averages that a unit needs: all its tensors' averages, in slot
// order, whole on every rank.
StateSpecs averages(const ParamUnit& unit, const StateOptions&) {
  int64_t counts[3] = {};
  for (const auto& slot : unit.slots()) {
    if (slot.held) continue;
    const Shape shape(slot);
    counts[kRow] += shape.row_values();
    counts[shape.factored ? kColumn : kVector] += shape.column_values();
  }
  return {StateSpec::of_whole_unit("exp_avg_sq_row", counts[kRow]),
          StateSpec::of_whole_unit("exp_avg_sq_col", counts[kColumn]),
          StateSpec::of_whole_unit("exp_avg_sq", counts[kVector])};
}

// A trained tensor with views of its moving averages and its parts of the buffers.
struct Trained {
  size_t unit;
  const ParamSlot* slot;
  Shape shape;
  std::optional<at::Tensor> row;
  at::Tensor column;
  // Sums per row and per column; adafactor_moments turns them into factors.
  std::optional<at::Tensor> row_sums;
  at::Tensor column_sums, norm;
};

// Buffer sizes [elements]: `sums` counts floats, `norms` counts doubles.
struct BufferSizes {
  int64_t sums = 0, norms = 0;

  void add(const ParamUnit& unit) {
    for (const auto& slot : unit.slots()) {
      if (slot.held) continue;
      sums += Shape(slot).row_values() + Shape(slot).column_values();
      ++norms;
    }
  }
};

// transformers.optimization.Adafactor with the settings of transformers' Trainer
// (ops/adafactor/adafactor.h). Ranks that shard a unit all-reduce the row sums, the column sums and
// the squared update norms of all tensors.
class Adafactor : public Optimizer {
 public:
  explicit Adafactor(Strategy& strategy) : strategy_(strategy) {
    BufferSizes sizes;
    for (const auto& state : strategy.states()) sizes.add(*state.unit);
    const auto options = at::TensorOptions().device(strategy.device());
    sums_ = at::zeros({sizes.sums}, options.dtype(at::kFloat));
    norms_ = at::zeros({sizes.norms}, options.dtype(at::kDouble));
    for (size_t unit = 0; unit < strategy.states().size(); ++unit) add_unit(unit);
  }

  int64_t nbytes() const override { return static_cast<int64_t>(sums_.nbytes() + norms_.nbytes()); }

  void update(const OptimizerOptions& options, const at::Tensor& scalars) override {
    sums_.zero_();
    for_parts([&](const Trained& t, const at::Tensor& grad, int64_t first) {
      adafactor_sums(grad, scalars, t.row_sums, t.column_sums, first, t.shape.rows,
                     t.shape.columns);
    });
    add_up(sums_, "sums of rows and columns");
    for (const Trained& t : tensors_) {
      adafactor_moments(t.row_sums, t.column_sums, t.row, t.column, scalars, t.shape.rows,
                        t.shape.columns);
    }
    norms_.zero_();
    for_parts([&](const Trained& t, const at::Tensor& grad, int64_t first) {
      adafactor_norm(grad, scalars, t.row_sums, t.column_sums, t.norm, first, t.shape.rows,
                     t.shape.columns);
    });
    add_up(norms_, "norms of updates");
    size_t next = 0;
    for (size_t unit = 0; unit < strategy_.states().size(); ++unit) {
      const UnitState state = strategy_.begin_update(unit);
      for (; next < tensors_.size() && tensors_[next].unit == unit; ++next) {
        update_tensor(tensors_[next], state, options, scalars);
      }
      strategy_.end_update(unit);
    }
    strategy_.finish_update();
  }

 private:
  void add_unit(size_t unit) {
    const UnitState& state = strategy_.states()[unit];
    int64_t used[3] = {};
    const auto kept = [&](KeptAverage kind, int64_t count) {
      const at::Tensor part = state.values[kind].narrow(0, used[kind], count);
      used[kind] += count;
      return part;
    };
    const auto sums = [&](int64_t count) {
      const at::Tensor part = sums_.narrow(0, sums_used_, count);
      sums_used_ += count;
      return part;
    };
    for (const auto& slot : state.unit->slots()) {
      if (slot.held) continue;
      Trained t{.unit = unit, .slot = &slot, .shape = Shape(slot)};
      if (t.shape.factored) {
        t.row = kept(kRow, t.shape.row_values());
        t.row_sums = sums(t.shape.row_values());
      }
      t.column = kept(t.shape.factored ? kColumn : kVector, t.shape.column_values());
      t.column_sums = sums(t.shape.column_values());
      t.norm = norms_.narrow(0, static_cast<int64_t>(tensors_.size()), 1);
      tensors_.push_back(std::move(t));
    }
  }

  // Returns the tensor's elements that this rank owns, as a range within the unit.
  static ElementRange part_of(const Trained& t, const UnitState& state) {
    return ElementRange{t.slot->offset, t.slot->offset + t.slot->numel()}.intersection(
        state.range());
  }

  // Calls work(tensor, gradients, first) for each tensor that this rank owns in part. `first` is
  // the position of the first gradient within its tensor.
  template <typename Work>
  void for_parts(const Work& work) {
    for (const Trained& t : tensors_) {
      const UnitState& state = strategy_.states()[t.unit];
      const ElementRange part = part_of(t, state);
      if (part.size() == 0) continue;
      const at::Tensor grad = strategy_.gradients().local(t.unit);
      work(t, grad.narrow(0, part.begin - state.begin, part.size()), part.begin - t.slot->offset);
    }
  }

  void add_up(const at::Tensor& buffer, const char* what) {
    if (!strategy_.replicated()) strategy_.shards().all_reduce_sum(buffer, what)->wait();
  }

  void update_tensor(const Trained& t, const UnitState& state, const OptimizerOptions& options,
                     const at::Tensor& scalars) {
    const ElementRange part = part_of(t, state);
    if (part.size() == 0) return;
    const UpdateRange range = range_of(strategy_, t.unit, state, part);
    adafactor_update(range.master, range.copy, range.grad, scalars, t.row_sums, t.column_sums,
                     t.norm, t.slot->numel(), options.learning_rate,
                     t.slot->decay ? options.weight_decay : 0.0, part.begin - t.slot->offset,
                     t.shape.rows, t.shape.columns);
  }

  Strategy& strategy_;
  at::Tensor sums_, norms_;
  int64_t sums_used_ = 0;
  std::vector<Trained> tensors_;  // sorted by unit
};

int64_t buffer_bytes(const std::vector<ParamUnit>& units) {
  BufferSizes sizes;
  for (const auto& unit : units) sizes.add(unit);
  return 4 * sizes.sums + 8 * sizes.norms;
}

const bool kAdafactorRegistered = OptimizerRegistry::instance().add(
    "adafactor", {.make = make_optimizer<Adafactor>, .state = averages, .buffers = buffer_bytes});

}  // namespace
}  // namespace fastsft
