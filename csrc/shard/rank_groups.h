#pragma once

#include <memory>
#include <string>

#include "core/watchdog.h"
#include "shard/communicator.h"

namespace fastsft {

// c10d groups by name. A node is a number of ranks that follow each other: those of a machine, or
// fewer.
struct GroupNames {
  std::string gather, reduce;            // all ranks, two groups; empty for one rank
  std::string node_gather, node_reduce;  // this node's ranks; empty: all ranks are one node
  std::string across;                    // the rank of every node that has this rank's place in it
};

// The ranks that together hold one copy of the state, and those that hold the same part of the
// other copies. The rank among `copies` is the number of the copy.
struct Sharding {
  Communicator& shards;
  Communicator& copies;
};

// The communicators of a run.
class RankGroups {
 public:
  RankGroups(const GroupNames& names, Watchdog& watchdog);

  Communicator& all() { return *all_; }
  Sharding over_all() { return {*all_, *alone_}; }  // one copy
  Sharding over_node() { return {node_ ? *node_ : *all_, across_ ? *across_ : *alone_}; }

 private:
  std::unique_ptr<Communicator> alone_;
  std::unique_ptr<Communicator> all_;
  std::unique_ptr<Communicator> node_;
  std::unique_ptr<Communicator> across_;
};

}  // namespace fastsft
