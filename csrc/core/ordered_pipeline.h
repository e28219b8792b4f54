#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace fastsft {

// Work in pieces that are made in order, processed in parallel and taken in order.
class OrderedPipeline {
 public:
  virtual ~OrderedPipeline() = default;

  // A piece passes three steps. `make` runs on one thread at a time, in order, and returns null at
  // the end. `work` runs in parallel. `take` runs on one thread at a time, in the order of `make`.
  // The calling thread calls `poll` between pieces.
  struct Piece {
    virtual ~Piece() = default;
  };
  virtual std::unique_ptr<Piece> make() = 0;
  virtual void work(Piece& piece) = 0;
  virtual void take(Piece& piece) = 0;
  virtual void poll() {}
  // True if the piece is so large that no other piece may be in memory at the same time.
  virtual bool is_alone(const Piece&) const { return false; }
};

// Runs until `make` returns null and all pieces were taken. Rethrows the exception of the first
// failed piece, after all earlier pieces were taken. `num_threads` includes the calling thread; 0
// means the core count, at most eight.
void run_in_order(OrderedPipeline& work, int num_threads);

}  // namespace fastsft
