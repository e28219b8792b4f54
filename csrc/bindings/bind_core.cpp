#include <c10/util/Exception.h>
#include <unistd.h>

#include <csignal>

#include "bindings/bind.h"
#include "core/build_info.h"
#include "core/rank_status.h"
#include "core/start_threads.h"
#include "core/watchdog.h"
#include "train/device_failure.h"

namespace fastsft::bindings {

namespace {

// Sets the Python exception torch.`name` with the message of `error`. torch's own exception
// translator works for torch's own modules only.
void set_error_of_torch(const char* name, const c10::Error& error) {
  const auto kind = pybind11::module_::import("torch").attr(name);
  pybind11::set_error(kind, error.what_without_backtrace());
}

pid_t parent_at_fork = 0;

void answer_sigterm(int number, siginfo_t* info, void* /*context*/) {
  if (info->si_pid != parent_at_fork && ::getppid() == parent_at_fork) return;
  std::signal(number, SIG_DFL);
  ::kill(::getpid(), number);  // delivered when this handler has returned
}

// Installs a SIGTERM handler in a forked process. A SIGTERM that the parent sent ends this process,
// as by default: the parent closes its pool. Any other SIGTERM went to the whole process group and
// is ignored, because the parent handles it and then ends its children. If the parent is gone,
// every SIGTERM ends this process.
void end_at_parents_sigterm() {
  parent_at_fork = ::getppid();
  struct sigaction action {};
  action.sa_sigaction = answer_sigterm;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  ::sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

void bind_core(pybind11::module_& module) {
  prepare_exceptions();
  // pybind11 already turns std::invalid_argument into ValueError and std::runtime_error into
  // RuntimeError. This translator keeps the message of torch's exceptions and drops the C++
  // backtrace.
  pybind11::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const c10::ValueError& error) {
      pybind11::set_error(PyExc_ValueError, error.what_without_backtrace());
    } catch (const c10::OutOfMemoryError& error) {
      set_error_of_torch("OutOfMemoryError", error);
    } catch (const c10::AcceleratorError& error) {
      set_error_of_torch("AcceleratorError", error);
    } catch (const c10::Error& error) {
      pybind11::set_error(PyExc_RuntimeError, error.what_without_backtrace());
    }
  });
  pybind11::register_exception<ThreadDenied>(module, "ThreadDeniedError", PyExc_RuntimeError);
  pybind11::register_exception<CollectiveError>(module, "CollectiveError", PyExc_RuntimeError);
  pybind11::register_exception<PeerFailedError>(module, "PeerFailedError", PyExc_RuntimeError);
  module.def("rank_status", [] { return RankStatus::instance().text(); });
  // Sets rank and world size from the launcher, for messages before the process group exists.
  module.def(
      "set_place",
      [](int rank, int world_size) { RankStatus::instance().set_rank(rank, world_size); },
      pybind11::arg("rank"), pybind11::arg("world_size"));
  module.def(
      "enter_phase",
      [](const std::string& phase, double timeout_seconds) {
        PhaseDeadline::instance().enter(phase, timeout_seconds);
      },
      pybind11::arg("phase"), pybind11::kw_only(), pybind11::arg("timeout_seconds"));
  module.def("require_threads", &require_threads, pybind11::arg("count"), pybind11::arg("what"),
             pybind11::call_guard<pybind11::gil_scoped_release>());
  module.def("end_at_parents_sigterm", &end_at_parents_sigterm);
  module.def("note_progress", [] { PhaseDeadline::instance().progress(); });
  explain_device_failures();
  module.def("device_failure", &device_failure, pybind11::arg("error"));
  module.attr("torch_version") = FASTSFT_TORCH_VERSION;
  module.attr("with_cuda") = has_cuda();
  module.attr("cuda_architectures") = kCudaArchitectures;
}

}  // namespace fastsft::bindings
