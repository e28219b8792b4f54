#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <utility>
#include <vector>

#include "model/generic_model.h"

namespace fastsft::bindings {

// Access to a model's units for a forward and backward in Python; valid during the call. autograd
// records none of these calls.
class UnitAccess {
 public:
  explicit UnitAccess(Strategy& strategy) : strategy_(&strategy) {}

  bool replicated() const { return strategy_->replicated(); }
  at::Tensor gather(size_t unit) const;
  void prefetch(size_t unit) const;
  void release(size_t unit) const;
  // Returns the unit's whole flat gradient, writable until `reduce`.
  at::Tensor gradient(size_t unit) const;
  // Returns true if `offset` was already written in this step, so the next write must accumulate.
  // Marks it as written: call once per write.
  bool begin_write(size_t unit, int64_t offset) const;
  // Sets the gradients at `places` (offset, numel) to zero if nothing was written there, then
  // reduces the unit's gradient of this micro-batch.
  void reduce(size_t unit, const std::vector<std::pair<int64_t, int64_t>>& places) const;

  // Frozen units.
  bool frozen_by_ranges() const { return strategy_->frozen().by_ranges(); }
  at::Tensor gather_frozen(size_t unit) const;
  void prefetch_frozen(size_t unit) const;
  void release_frozen(size_t unit) const { strategy_->frozen().release(unit); }

 private:
  Strategy* strategy_;
};

// A model that calls a Python object with the methods `forward_backward(units, batch, draws,
// label_smoothing, loss)`, `forward_loss(units, batch, label_smoothing, loss)` and `logits(units,
// batch)`. Acquires the GIL for each call.
class PythonModel : public ModelCalls {
 public:
  explicit PythonModel(pybind11::object object) : object_(std::move(object)) {}
  ~PythonModel() override;

  void forward_backward(const Batch& batch, Strategy& strategy, const TrainingPass& pass,
                        const at::Tensor& loss) override;
  void forward_loss(const Batch& batch, Strategy& strategy, double label_smoothing,
                    const at::Tensor& loss) override;
  at::Tensor logits(const Batch& batch, Strategy& strategy) override;

 private:
  pybind11::object object_;
};

// The layout and the Python object from which `make` constructs a GenericModel.
struct PythonModelMaker {
  GenericLayout layout;
  pybind11::object object;

  std::unique_ptr<Model> make() const;
};

}  // namespace fastsft::bindings
