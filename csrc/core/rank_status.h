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

// Status line of this rank, for messages about ranks that lost each other.
class RankStatus {
 public:
  static RankStatus& instance();

  void set_rank(int rank, int world_size);
  void set_step(int64_t step);  // from 1; 0: no step yet
  void set_collective(std::string collective);
  // "rank 1 of 3, step 7, backward, last collective: reduce_scatter block.3"
  std::string text();

 private:
  friend class ScopedPhase;
  std::mutex mutex_;
  int rank_ = 0, world_size_ = 1;
  int64_t step_ = 0;
  std::string collective_ = "none";
  std::atomic<const char*> phase_{"start"};
};

// Names the phase of the process until the end of the scope. `name` must outlive it.
class ScopedPhase {
 public:
  explicit ScopedPhase(const char* name);
  ~ScopedPhase();
  ScopedPhase(const ScopedPhase&) = delete;
  ScopedPhase& operator=(const ScopedPhase&) = delete;

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
  // "<status>: <what> failed: <reason>; ..."
  CollectiveError(const std::string& what, const std::string& reason);
};

}  // namespace fastsft
