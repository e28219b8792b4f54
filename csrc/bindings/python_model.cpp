#include "bindings/python_model.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/utils/pybind.h>

namespace fastsft::bindings {

namespace py = pybind11;

at::Tensor UnitAccess::gather(size_t unit) const {
  const c10::NoGradGuard no_grad;
  return strategy_->gather(unit);
}

void UnitAccess::prefetch(size_t unit) const {
  const c10::NoGradGuard no_grad;
  strategy_->prefetch(unit);
}

void UnitAccess::release(size_t unit) const { strategy_->release(unit); }

at::Tensor UnitAccess::gather_frozen(size_t unit) const {
  const c10::NoGradGuard no_grad;
  return strategy_->frozen().gather(unit);
}

void UnitAccess::prefetch_frozen(size_t unit) const {
  const c10::NoGradGuard no_grad;
  strategy_->frozen().prefetch(unit);
}

at::Tensor UnitAccess::gradient(size_t unit) const {
  const c10::NoGradGuard no_grad;
  const UnitGradient& gradient = strategy_->gradients().whole(unit);
  FASTSFT_ASSERT(gradient.begin() == 0, "a unit of a generic model with linears");
  return gradient.flat();
}

bool UnitAccess::begin_write(size_t unit, int64_t offset) const {
  return strategy_->gradients().whole(unit).begin_write(offset) != 0.0;
}

void UnitAccess::reduce(size_t unit, const std::vector<std::pair<int64_t, int64_t>>& places) const {
  const c10::NoGradGuard no_grad;
  UnitGradient& gradient = strategy_->gradients().whole(unit);
  for (const auto& [offset, numel] : places) {
    if (gradient.begin_write(offset) == 0.0) gradient.range(offset, numel).zero_();
  }
  strategy_->gradients().reduce(unit);
}

// The last reference may be dropped on a thread that does not hold the GIL.
PythonModel::~PythonModel() {
  const py::gil_scoped_acquire acquired;
  object_ = py::object();
}

void PythonModel::forward_backward(const Batch& batch, Strategy& strategy, const TrainingPass& pass,
                                   const at::Tensor& loss) {
  const py::gil_scoped_acquire acquired;
  const DrawPlace& draws = pass.draws;
  object_.attr("forward_backward")(UnitAccess(strategy), batch,
                                   py::make_tuple(draws.seed, draws.step, draws.micro_batch),
                                   pass.label_smoothing, loss);
}

void PythonModel::forward_loss(const Batch& batch, Strategy& strategy, double label_smoothing,
                               const at::Tensor& loss) {
  const py::gil_scoped_acquire acquired;
  object_.attr("forward_loss")(UnitAccess(strategy), batch, label_smoothing, loss);
}

at::Tensor PythonModel::logits(const Batch& batch, Strategy& strategy) {
  const py::gil_scoped_acquire acquired;
  return py::cast<at::Tensor>(object_.attr("logits")(UnitAccess(strategy), batch));
}

std::unique_ptr<Model> PythonModelMaker::make() const {
  return std::make_unique<GenericModel>(layout, std::make_unique<PythonModel>(object));
}

}  // namespace fastsft::bindings
