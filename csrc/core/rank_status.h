#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>

namespace fastsft {

// Exit status if ranks lost each other or a rank is stuck (docs/signals.md).
inline constexpr int kExitPeerLost = 3;

// The step, phase and last collective of this rank, for messages about lost ranks.
class RankStatus {
 public:
  static RankStatus& instance();

  void set_rank(int rank, int world_size);
  void set_step(int64_t step);  // from 1; 0: no step yet
  void set_collective(std::string collective);
  // Returns, for example, "rank 1 of 3, step 7, backward, last collective: reduce_scatter block.3".
  std::string text();

 private:
  friend class ScopedPhase;
  std::mutex mutex_;
  int rank_ = 0, world_size_ = 1;
  int64_t step_ = 0;
  std::string collective_ = "none";
  std::atomic<const char*> phase_{"start"};
};

// Sets the process's phase until the scope ends. `name` must outlive the object.
class ScopedPhase {
 public:
  explicit ScopedPhase(const char* name);
  ~ScopedPhase();
  ScopedPhase(const ScopedPhase&) = delete;
  ScopedPhase& operator=(const ScopedPhase&) = delete;

 private:
  const char* before_;
};

// An error that another rank raised, with that rank's message. RuntimeError in Python.
class PeerFailedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Ranks lost each other: a peer died, or a collective timed out or failed. RuntimeError in Python.
class CollectiveError : public std::runtime_error {
 public:
  // Makes the message "<status>: <what> failed: <reason>; ...".
  CollectiveError(const std::string& what, const std::string& reason);
};

}  // namespace fastsft
