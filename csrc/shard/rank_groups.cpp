#include "shard/rank_groups.h"

#include "core/error.h"
#include "core/whereabouts.h"

namespace fastsft {

RankGroups::RankGroups(const GroupNames& names, Watchdog& watchdog)
    : alone_(make_communicator("", "", watchdog)),
      all_(make_communicator(names.gather, names.reduce, watchdog)) {
  Whereabouts::instance().set_rank(all_->rank(), all_->world_size());
  require(names.node_gather.empty() == names.across.empty(),
          "give the groups of a node and the group across nodes together, got \"",
          names.node_gather, "\" and \"", names.across, "\"");
  if (names.node_gather.empty()) return;
  node_ = make_communicator(names.node_gather, names.node_reduce, watchdog);
  across_ = make_communicator(names.across, names.across, watchdog);
  const int size = node_->world_size(), place = across_->rank() * size + node_->rank();
  require(size * across_->world_size() == all_->world_size() && place == all_->rank(),
          "nodes must be equal numbers of ranks that follow each other: rank ", all_->rank(),
          " of ", all_->world_size(), " is rank ", node_->rank(), " of ", size, " in node ",
          across_->rank(), " of ", across_->world_size());
}

}  // namespace fastsft
