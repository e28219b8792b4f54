#include "train/device_failure.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>

#include "core/rank_status.h"

namespace fastsft {
namespace {

std::terminate_handler others = nullptr;

[[noreturn]] void leave() {
  if (const std::exception_ptr error = std::current_exception()) {
    try {
      std::rethrow_exception(error);
    } catch (const c10::AcceleratorError& failure) {
      const std::string line = "error: " + device_failure(failure.what_without_backtrace()) + "\n";
      if (::write(STDERR_FILENO, line.data(), line.size()) < 0) ::_exit(1);
      ::_exit(1);
    } catch (...) {
    }
  }
  if (others) others();
  std::abort();
}

}  // namespace

std::string device_failure(const std::string& error) {
  return RankStatus::instance().text() + ": the GPU failed: " + error.substr(0, error.find('\n')) +
         "; nothing more can be computed or saved there. Look at nvidia-smi and the system log "
         "(Xid), "
         "then start the same command again: it resumes from the newest checkpoint";
}

void explain_device_failures() {
  static const bool done = [] {
    others = std::set_terminate(leave);
    return true;
  }();
  (void)done;
}

}  // namespace fastsft
