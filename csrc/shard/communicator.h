#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/watchdog.h"

namespace fastsft {

// A collective in flight. Work that is enqueued after `wait` may read the output and overwrite the
// input. On the CPU `wait` returns when the collective is done; on a device the host does not wait.
// The tensors stay alive until `wait`. Calling `wait` twice is allowed.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual void wait() = 0;
};
using PendingPtr = std::unique_ptr<Pending>;

// Ranks that exchange tensors. Only the step thread enqueues collectives, in the same order on
// every rank. Tensors are flat and contiguous. `what` names the tensor in messages and timelines.
// Methods throw CollectiveError if a peer died, a timeout passed or the network failed.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // Gathers all ranks' `shard` [n] into `whole` [world * n]. `shard` may be this rank's part of
  // `whole`.
  virtual PendingPtr all_gather(const at::Tensor& whole, const at::Tensor& shard,
                                const std::string& what) = 0;
  // Sums `whole` [world * n] over the ranks and writes this rank's part to `shard` [n]. `shard` may
  // be this rank's part of `whole`; the other parts do not change.
  virtual PendingPtr reduce_scatter_sum(const at::Tensor& shard, const at::Tensor& whole,
                                        const std::string& what) = 0;
  // Sends a part of `sent` to each rank and receives a part from each into `received`, both in rank
  // order. `sent_counts`, `received_counts`: elements of each part; what a rank sends another must
  // be what the other expects.
  virtual PendingPtr all_to_all(const at::Tensor& received,
                                const std::vector<int64_t>& received_counts, const at::Tensor& sent,
                                const std::vector<int64_t>& sent_counts,
                                const std::string& what) = 0;
  virtual PendingPtr all_reduce_sum(const at::Tensor& tensor, const std::string& what) = 0;
  // Writes the element-wise maximum over all ranks to `tensor`.
  virtual PendingPtr all_reduce_max(const at::Tensor& tensor, const std::string& what) = 0;
  // Returns true if sums of `device`'s tensors go through copies in host memory, as gloo's do.
  virtual bool copies_to_host(const at::Device& device) const = 0;
  // Gathers `shard` [n] of every rank into `whole` [world * n] on rank 0; `whole` is undefined on
  // other ranks.
  virtual void gather_to_rank0(const at::Tensor& whole, const at::Tensor& shard,
                               const std::string& what) = 0;
};

// Makes a communicator from two c10d groups with the same ranks, so that a gather never waits for a
// reduction. If the names are empty or the groups have one rank, nothing is communicated.
// `watchdog` watches the host's waits and outlives the communicator.
std::unique_ptr<Communicator> make_communicator(const std::string& gather_group,
                                                const std::string& reduce_group,
                                                Watchdog& watchdog);

// Names of c10d groups. A node here is a set of consecutive ranks: a whole machine, or fewer.
struct GroupNames {
  std::string gather, reduce;            // two groups of all ranks; empty for a single rank
  std::string node_gather, node_reduce;  // this node's ranks; empty if there is only one node
  std::string across;                    // the ranks with this rank's local rank on all nodes
  std::string context;  // the ranks that share a micro-batch's tokens; empty: they do not
};

// `shards`: the ranks that together hold one replica of the state. `replicas`: the ranks that hold
// the same shard in different replicas; the rank in `replicas` is the replica's number.
struct Sharding {
  Communicator& shards;
  Communicator& replicas;
};

// The communicators of a run.
class RankGroups {
 public:
  RankGroups(const GroupNames& names, Watchdog& watchdog);

  Communicator& all() { return *all_; }
  Sharding over_all() { return {*all_, *alone_}; }  // a single replica
  Sharding over_node() { return {node_ ? *node_ : *all_, across_ ? *across_ : *alone_}; }
  // Returns the ranks that share the tokens of a micro-batch (context parallelism).
  Communicator& context() { return *context_; }

 private:
  std::unique_ptr<Communicator> alone_;
  std::unique_ptr<Communicator> all_;
  std::unique_ptr<Communicator> node_;
  std::unique_ptr<Communicator> across_;
  std::unique_ptr<Communicator> context_;
};

}  // namespace fastsft
