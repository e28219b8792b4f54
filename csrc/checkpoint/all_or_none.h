#pragma once

#include <exception>
#include <string>

#include "shard/communicator.h"
#include "shard/unit_state.h"

namespace fastsft {

// Work that may fail on some ranks while other ranks wait for them in a collective. A rank stores
// its failure and still takes part in the collectives. At the end all ranks throw, or none does.
class AllOrNone {
 public:
  // Calls `work`, unless earlier work has failed.
  template <typename Work>
  void run(Work&& work) {
    if (failure_) return;
    try {
      work();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  // Throws this rank's failure. If only other ranks failed, throws PeerFailedError with `what`.
  // Collective. `device`: where the communicator's tensors live.
  void finish(Communicator& communicator, at::Device device, const std::string& what) const;

 private:
  std::exception_ptr failure_;
};

}  // namespace fastsft
