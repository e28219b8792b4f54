// Puts the ops of ops_on_cpu.cpp in the place of the product's CPU ops, for whole steps of an
// engine.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <memory>
#include <string>

namespace {

constexpr const char* kOwnOps = "fastsft_on_cpu::";

c10::OperatorHandle find(const std::string& name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
}

std::string plain_name(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return name.substr(name.find("::") + 2);
}

void redirect(const c10::OperatorHandle& op, c10::Stack* stack) {
  find(kOwnOps + plain_name(op)).callBoxed(stack);
}

// The engine lends memory of the CPU's layout; the kernels' own is another one.
void redirect_without_workspace(const c10::OperatorHandle& op, c10::Stack* stack) {
  const auto& schema = op.schema();
  const auto place = static_cast<size_t>(schema.argumentIndexWithName("workspace").value());
  stack->at(stack->size() - schema.arguments().size() + place) = c10::IValue();
  redirect(op, stack);
}

// torch says once that a kernel is overridden.
struct Silent : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

std::unique_ptr<torch::Library> replaced;

}  // namespace

extern "C" {
void cuda_on_cpu_replace_cpu_ops() {
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  replaced = std::make_unique<torch::Library>(torch::Library::IMPL, "fastsft",
                                              c10::DispatchKey::CPU, __FILE__, __LINE__);
  for (const auto& each : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!each.name.starts_with(kOwnOps)) continue;
    if (!find(each.name).hasKernelForDispatchKey(c10::DispatchKey::CPU)) continue;  // products
    const std::string name = plain_name(find(each.name));
    auto function = name == "linear_cross_entropy"
                        ? torch::CppFunction::makeFromBoxedFunction<&redirect_without_workspace>()
                        : torch::CppFunction::makeFromBoxedFunction<&redirect>();
    replaced->impl(name.c_str(), std::move(function));
  }
}
void cuda_on_cpu_restore_cpu_ops() { replaced.reset(); }
}
