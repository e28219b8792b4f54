#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "core/watchdog.h"

namespace fastsft {

// A collective in flight. Work enqueued after `wait` may read its output and overwrite its input.
// On the CPU `wait` returns when the collective is done; on a device the host does not wait. Keeps
// the tensors alive until then. Waiting twice is allowed.
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
  // Element-wise maximum over all ranks.
  virtual PendingPtr all_reduce_max(const at::Tensor& tensor, const std::string& what) = 0;
  // whole [world * n] on rank 0 <- shard [n] of every rank; `whole` is undefined elsewhere.
  virtual void gather_to_rank0(const at::Tensor& whole, const at::Tensor& shard,
                               const std::string& what) = 0;
};

// Two groups over the same ranks, by their c10d names, so that a gather never waits for a
// reduction. Empty names, or groups of one rank: nothing to communicate.
// `watchdog` (outlives the communicator) watches the waits of the host.
std::unique_ptr<Communicator> make_communicator(const std::string& gather_group,
                                                const std::string& reduce_group,
                                                Watchdog& watchdog);

// c10d groups by name. A node is a number of ranks that follow each other: those of a machine, or
// fewer.
struct GroupNames {
  std::string gather, reduce;            // all ranks, two groups; empty for one rank
  std::string node_gather, node_reduce;  // this node's ranks; empty: all ranks are one node
  std::string across;                    // the rank of every node that has this rank's place in it
};

// The ranks that together hold one replica of the state, and the ranks that hold the same part in
// each replica. The rank in `replicas` is the number of the replica.
struct Sharding {
  Communicator& shards;
  Communicator& replicas;
};

// All communicators of a run.
class RankGroups {
 public:
  RankGroups(const GroupNames& names, Watchdog& watchdog);

  Communicator& all() { return *all_; }
  Sharding over_all() { return {*all_, *alone_}; }  // one replica
  Sharding over_node() { return {node_ ? *node_ : *all_, across_ ? *across_ : *alone_}; }

 private:
  std::unique_ptr<Communicator> alone_;
  std::unique_ptr<Communicator> all_;
  std::unique_ptr<Communicator> node_;
  std::unique_ptr<Communicator> across_;
};

}  // namespace fastsft
