#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace fastsft {

// A pipeline over pieces of work: read in order, processed in parallel, consumed in order.
class OrderedPipeline {
 public:
  virtual ~OrderedPipeline() = default;

  // The steps of one piece. `make` runs on one thread at a time and in order, and returns null when
  // there is no more; `work` runs in parallel; `take` again on one thread at a time, in the order
  // of `make`. `poll` runs on the calling thread now and then.
  struct Piece {
    virtual ~Piece() = default;
  };
  virtual std::unique_ptr<Piece> make() = 0;
  virtual void work(Piece& piece) = 0;
  virtual void take(Piece& piece) = 0;
  virtual void poll() {}
  // True if a piece is so large that no other may be in memory at the same time.
  virtual bool is_alone(const Piece&) const { return false; }
};

// Runs until `make` returns null and everything was taken. The exception of the first piece in
// order is thrown again here, after all pieces before it were taken. `num_threads` 0 takes as many
// as the machine has cores, eight at most; the calling thread is one of them.
void run_in_order(OrderedPipeline& work, int num_threads);

}  // namespace fastsft
