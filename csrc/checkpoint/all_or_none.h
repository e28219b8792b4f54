#pragma once

#include <exception>
#include <string>

#include "shard/communicator.h"
#include "shard/unit_state.h"

namespace fastsft {

// Work that may fail on some ranks while the others wait for them in a collective: each rank keeps
// its failure and goes on taking part, and at the end all ranks throw or none does.
class AllOrNone {
 public:
  // Does `work` unless something failed before.
  template <typename Work>
  void run(Work&& work) {
    if (failure_) return;
    try {
      work();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  // Collective. Throws this rank's failure, or PeerFailedError naming `what` when only another
  // rank failed. `device` is where the communicator's tensors live.
  void finish(Communicator& communicator, at::Device device, const std::string& what) const;

 private:
  std::exception_ptr failure_;
};

}  // namespace fastsft
