#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <utility>
#include <vector>

#include "model/called_model.h"

namespace fastsft::bindings {

// The units of a model as its forward and backward in Python sees them; valid during the call.
// Called with or without autograd, which never sees what happens here.
class UnitAccess {
 public:
  explicit UnitAccess(Strategy& strategy) : strategy_(&strategy) {}

  bool replicated() const { return strategy_->replicated(); }
  at::Tensor gather(size_t unit) const;
  void prefetch(size_t unit) const;
  void release(size_t unit) const;
  // The whole flat gradient of `unit` to write into, until `reduce`.
  at::Tensor gradient(size_t unit) const;
  // Whether what is at `offset` of the gradient counts already: the next write adds to it. Asked
  // once a write.
  bool adds_to_gradient(size_t unit, int64_t offset) const;
  // Of the tensors that begin at `offsets`, those that nothing was written to become zero; then
  // the unit's gradient of this micro-batch is complete.
  void reduce(size_t unit, const std::vector<std::pair<int64_t, int64_t>>& places) const;

  // Of units that nothing updates.
  bool frozen_by_ranges() const { return strategy_->frozen().by_ranges(); }
  at::Tensor gather_frozen(size_t unit) const;
  void prefetch_frozen(size_t unit) const;
  void release_frozen(size_t unit) const { strategy_->frozen().release(unit); }

 private:
  Strategy* strategy_;
};

// An object with the methods `forward_backward(units, batch, draws, label_smoothing, loss)`,
// `forward_loss(units, batch, label_smoothing, loss)` and `logits(units, batch)`. Holds the GIL
// while it is called.
class PythonModel : public ModelCalls {
 public:
  explicit PythonModel(pybind11::object object) : object_(std::move(object)) {}
  ~PythonModel() override;

  void forward_backward(const Batch& batch, Strategy& strategy, const DrawPlace& draws,
                        double label_smoothing, const at::Tensor& loss) override;
  void forward_loss(const Batch& batch, Strategy& strategy, double label_smoothing,
                    const at::Tensor& loss) override;
  at::Tensor logits(const Batch& batch, Strategy& strategy) override;

 private:
  pybind11::object object_;
};

// What Python hands to the engine: the layout, and the object that is called.
struct PythonModelMaker {
  CalledLayout layout;
  pybind11::object object;

  std::unique_ptr<Model> make() const;
};

}  // namespace fastsft::bindings
