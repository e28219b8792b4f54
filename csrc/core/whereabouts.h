#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>

namespace fastsft {

// The exit status when ranks lost each other, or one is stuck (docs/signals.md).
inline constexpr int kExitPeerLost = 3;

// What a process says about itself when ranks lose each other.
class Whereabouts {
 public:
  static Whereabouts& instance();

  void set_rank(int rank, int world_size);
  void set_step(int64_t step);  // from 1; 0: no step yet
  void set_collective(std::string collective);
  // "rank 1 of 3, step 7, backward, last collective: reduce_scatter block.3"
  std::string text();

 private:
  friend class Phase;
  std::mutex mutex_;
  int rank_ = 0, world_size_ = 1;
  int64_t step_ = 0;
  std::string collective_ = "none";
  std::atomic<const char*> phase_{"start"};
};

// What the process does until the end of the scope. `name` outlives it.
class Phase {
 public:
  explicit Phase(const char* name);
  ~Phase();
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;

 private:
  const char* before_;
};

// Another rank failed; carries its message. RuntimeError in Python.
class PeerFailedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Ranks lost each other: a peer died, a collective timed out or failed. RuntimeError in Python.
class CollectiveError : public std::runtime_error {
 public:
  // "<whereabouts>: <what> failed: <reason>; ..."
  CollectiveError(const std::string& what, const std::string& reason);
};

}  // namespace fastsft
