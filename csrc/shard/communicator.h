#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "core/watchdog.h"

namespace fastsft {

// A collective under way. What is given to the device after `wait` may read its output and write
// its input again; on the CPU `wait` returns when it is done, on a device the host does not wait.
// The tensors of the call are kept alive until then. Waiting twice is allowed.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual void wait() = 0;
};
using PendingPtr = std::unique_ptr<Pending>;

// Ranks that exchange tensors. Collectives are enqueued by the step thread only, in the same
// order on every rank. Tensors are flat and contiguous. `what` names the tensor in messages and
// timelines. A peer that died, a timeout or an error of the network is a CollectiveError.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // whole [world * n] <- shard [n] of every rank. `shard` may be this rank's part of `whole`.
  virtual PendingPtr all_gather(const at::Tensor& whole, const at::Tensor& shard,
                                const std::string& what) = 0;
  // shard [n] <- the sum over ranks of this rank's part of whole [world * n]. `shard` may be that
  // part itself; the others stay as they are.
  virtual PendingPtr reduce_scatter_sum(const at::Tensor& shard, const at::Tensor& whole,
                                        const std::string& what) = 0;
  virtual PendingPtr all_reduce_sum(const at::Tensor& tensor, const std::string& what) = 0;
  // The largest of all ranks, element by element.
  virtual PendingPtr all_reduce_max(const at::Tensor& tensor, const std::string& what) = 0;
  // whole [world * n] on rank 0 <- shard [n] of every rank; `whole` is undefined elsewhere.
  virtual void gather_to_first(const at::Tensor& whole, const at::Tensor& shard,
                               const std::string& what) = 0;
  virtual void broadcast_from_first(const at::Tensor& tensor, const std::string& what) = 0;
};

// Two groups over the same ranks, by their c10d names, so that a gather never waits for a
// reduction. Empty names, or groups of one rank: nothing to communicate.
// `watchdog` (outlives the communicator) watches the waits of the host.
std::unique_ptr<Communicator> make_communicator(const std::string& gather_group,
                                                const std::string& reduce_group,
                                                Watchdog& watchdog);

}  // namespace fastsft
