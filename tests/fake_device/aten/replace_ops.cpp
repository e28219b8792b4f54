// ATen's ops for CUDA tensors by the CPU's kernels, in the order of the current stream. Outputs
// have the shapes that the op's meta kernel gives. An op without one, as those whose output shapes
// depend on data, waits for the stream and runs at once.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/ops/copy_native.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/library.h>

#include <algorithm>
#include <set>

#include "aten/flash_attention.h"
#include "aten/tensors.h"

namespace fake_device {
namespace {

using Stack = torch::jit::Stack;
using c10::IValue;

// Ops without kernels of the device keep torch's own code; flash attention has a file of its own.
const std::set<std::string> kKept = {"aten::empty.memory_format",
                                     "aten::empty_strided",
                                     "aten::_local_scalar_dense",
                                     "aten::resize_",
                                     "aten::_resize_output_",
                                     "aten::record_stream",
                                     "aten::is_set_to",
                                     "aten::_efficientzerotensor",
                                     "aten::_flash_attention_forward",
                                     "aten::_flash_attention_backward",
                                     "aten::copy_",
                                     "aten::_reshape_alias",
                                     "aten::_pin_memory",
                                     "aten::is_pinned",
                                     "aten::_has_same_storage_numel"};

// `value` with each tensor changed, and devices replaced by `device`.
template <typename Change>
IValue changed(const IValue& value, at::DeviceType device, const Change& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isDevice()) return at::Device(device);
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : value.toTensorVector()) list.push_back(change(each));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& each : value.toOptionalTensorList().vec()) {
      list.push_back(each ? std::optional(change(*each)) : std::nullopt);
    }
    return list;
  }
  return value;
}

template <typename Visit>
void for_each_tensor(const IValue& value, const Visit& visit) {
  changed(value, at::kCPU, [&](const at::Tensor& each) {
    if (each.defined()) visit(each);
    return each;
  });
}

// A CPU generator that draws by the CUDA generator's seed and offset, which moves on.
at::Generator cpu_generator(const IValue& given) {
  at::Generator generator =
      given.isNone() ? at::cuda::detail::getDefaultCUDAGenerator() : given.toGenerator();
  if (generator.device().is_cpu()) return generator;
  auto* cuda = at::check_generator<at::CUDAGeneratorImpl>(generator);
  const std::lock_guard lock(generator.mutex());
  const uint64_t seed = cuda->current_seed(), offset = cuda->get_offset();
  cuda->set_offset(offset + 4);
  return at::detail::createCPUGenerator(seed * 0x9e3779b97f4a7c15u + offset);
}

void call(const c10::OperatorHandle& op, c10::DispatchKey key, Stack& stack) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  op.redispatchBoxed(c10::DispatchKeySet(key), &stack);
}

at::Tensor empty_like_on_device(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(),
                           tensor.options().device(at::kCUDA).pinned_memory(false));
}

// One call of an op on CUDA tensors.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack args) : op_(op), args_(std::move(args)) {
    const auto& arguments = schema().arguments();
    for (size_t i = 0; i < args_.size(); ++i) {
      const auto* alias = arguments[i].alias_info();
      if (alias && alias->isWrite()) written_.push_back(i);
      if (arguments[i].type()->str().find("Generator") != std::string::npos)
        args_[i] = IValue(cpu_generator(args_[i]));
    }
    returns_new_ = !schema().returns().empty() && !schema().returns()[0].alias_info();
  }

  Stack run() {
    const std::optional<Stack> shapes = result_shapes();
    Ranges ranges;
    Stack on_cpu;
    for (size_t i = 0; i < args_.size(); ++i) {
      const bool write = std::ranges::count(written_, i) > 0;
      for_each_tensor(args_[i], [&](const at::Tensor& each) {
        if (each.is_cuda()) ranges.push_back(range_of(each, write));
      });
      on_cpu.push_back(changed(args_[i], at::kCPU, cpu_view));
    }
    return shapes ? enqueue_call(std::move(ranges), std::move(on_cpu), *shapes)
                  : call_now(std::move(ranges), std::move(on_cpu));
  }

 private:
  const c10::FunctionSchema& schema() const { return op_.schema(); }

  std::string name() const {
    const std::string& overload = schema().overload_name();
    return schema().name() + (overload.empty() ? "" : "." + overload);
  }

  // Meta tensors for new results, and arguments `out` resized; nothing if the shapes depend on
  // data.
  std::optional<Stack> result_shapes() {
    if (!returns_new_ && schema().name().ends_with("_")) return Stack{};
    Stack meta;
    for (const IValue& arg : args_) meta.push_back(changed(arg, at::kMeta, meta_like));
    const Stack outs = meta;
    try {
      call(op_, c10::DispatchKey::Meta, meta);
    } catch (const std::exception&) {
      return std::nullopt;
    }
    for (const size_t i : written_) {
      if (!args_[i].isTensor()) continue;
      const at::Tensor &real = args_[i].toTensor(), &wanted = outs[i].toTensor();
      if (real.sizes() != wanted.sizes()) real.resize_(wanted.sizes());
    }
    const bool has_only_tensors = std::ranges::all_of(
        meta, [](const IValue& value) { return value.isTensor() || value.isTensorList(); });
    return has_only_tensors ? std::optional(meta) : std::nullopt;
  }

  Stack written_arguments() const {
    Stack results;
    for (size_t i = 0; i < schema().returns().size(); ++i) results.push_back(args_[written_.at(i)]);
    return results;
  }

  Stack enqueue_call(Ranges ranges, Stack on_cpu, const Stack& shapes) {
    Stack results;
    std::vector<at::Tensor> outs;
    for (const IValue& value : returns_new_ ? shapes : Stack{}) {
      results.push_back(changed(value, at::kCUDA, [&](const at::Tensor& meta) {
        if (!meta.defined()) return meta;
        const at::Tensor out = empty_like_on_device(meta);
        outs.push_back(cpu_view(out));
        ranges.push_back(range_of(out, true));
        return out;
      }));
    }
    enqueue(current_stream(), name(), std::move(ranges), [op = op_, on_cpu, outs] {
      Stack stack = on_cpu;
      call(op, c10::DispatchKey::CPU, stack);
      size_t next = 0;
      for (const IValue& value : outs.empty() ? Stack{} : stack) {
        for_each_tensor(value, [&](const at::Tensor& each) { outs[next++].copy_(each); });
      }
      return true;
    });
    return returns_new_ ? results : written_arguments();
  }

  Stack call_now(Ranges ranges, Stack on_cpu) {
    c10::cuda::warn_or_error_on_sync();
    enqueue(current_stream(), name() + " (waits)", std::move(ranges), [] { return true; });
    wait_stream(current_stream());
    call(op_, c10::DispatchKey::CPU, on_cpu);
    if (!returns_new_) return written_arguments();
    Stack results;
    for (const IValue& value : on_cpu) {
      results.push_back(changed(value, at::kCUDA, [&](const at::Tensor& result) {
        if (!result.defined()) return result;
        const at::Tensor out = empty_like_on_device(result);
        enqueue(current_stream(), name() + " (result)", {range_of(out, true)},
                [to = cpu_view(out), result] {
                  to.copy_(result);
                  return true;
                });
        return out;
      }));
    }
    return results;
  }

  c10::OperatorHandle op_;
  Stack args_;
  std::vector<size_t> written_;  // arguments that the op writes
  bool returns_new_ = false;
};

void run_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const size_t count = op.schema().arguments().size();
  Stack args(stack->end() - static_cast<long>(count), stack->end());
  torch::jit::drop(*stack, count);
  for (IValue& result : Call(op, std::move(args)).run()) stack->push_back(std::move(result));
}

// Copies that torch makes by cudaMemcpy keep its code; those that need a kernel run here.
at::Tensor& copy_(at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  const bool same = self.dtype() == src.dtype() && self.sizes() == src.sizes();
  const bool plain = same && self.strides() == src.strides() && self.is_non_overlapping_and_dense();
  const bool contiguous = same && self.is_contiguous() && src.is_contiguous();
  if (!self.is_cuda() || !src.is_cuda() || self.numel() == 0 || plain || contiguous)
    return at::native::copy_(self, src, non_blocking);
  enqueue(current_stream(), "copy_ by a kernel", {range_of(src, false), range_of(self, true)},
          [to = cpu_view(self), from = cpu_view(src)] {
            const at::AutoDispatchBelowADInplaceOrView guard;
            to.copy_(from);
            return true;
          });
  return self;
}

bool returns_view(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.returns(), [](const c10::Argument& value) {
    return value.alias_info() && !value.alias_info()->isWrite();
  });
}

bool has_cpu_kernel(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
}

// torch warns for each kernel that is replaced.
struct Quiet : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

void replace_ops() {
  static auto* const library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  static Quiet quiet;
  const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::CUDA)) {
    if (name.getNamespace() != "aten") continue;
    const std::string overload = name.overload_name.empty() ? "" : "." + name.overload_name;
    const std::string full = name.name + overload;
    if (kKept.contains(full) || full.starts_with("aten::set_.")) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op || !has_cpu_kernel(*op) || returns_view(op->schema())) continue;
    library->impl(full.substr(6).c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  }
  library->impl("copy_", &copy_);
  replace_flash_attention(*library);
}

}  // namespace
}  // namespace fake_device

extern "C" __attribute__((visibility("default"))) void fake_device_replace_ops() {
  fake_device::replace_ops();
}
