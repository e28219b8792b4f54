#include "shard/communicator.h"

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "core/error.h"

namespace fastsft {
namespace {

class WorkPending : public Pending {
 public:
  explicit WorkPending(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}

  void wait() override {
    if (!work_) return;
    auto work = std::move(work_);
    work->wait();
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

class GroupCommunicator : public Communicator {
 public:
  GroupCommunicator(c10::intrusive_ptr<c10d::ProcessGroup> gather,
                    c10::intrusive_ptr<c10d::ProcessGroup> reduce)
      : gather_(std::move(gather)), reduce_(std::move(reduce)) {
    require(gather_->getRank() == reduce_->getRank() && gather_->getSize() == reduce_->getSize(),
            "the gather and the reduce group must hold the same ranks in the same order");
  }

  int rank() const override { return gather_->getRank(); }
  int world_size() const override { return gather_->getSize(); }

  PendingPtr all_gather(const at::Tensor& whole, const at::Tensor& shard) override {
    at::Tensor out = whole, in = shard;
    return pending(gather_->_allgather_base(out, in));
  }

  PendingPtr reduce_scatter_sum(const at::Tensor& shard, const at::Tensor& whole) override {
    at::Tensor out = shard, in = whole;
    return pending(reduce_->_reduce_scatter_base(out, in));
  }

  PendingPtr all_reduce_sum(const at::Tensor& tensor) override {
    std::vector<at::Tensor> tensors{tensor};
    return pending(reduce_->allreduce(tensors));
  }

  void gather_to_first(const at::Tensor& whole, const at::Tensor& shard) override {
    std::vector<at::Tensor> in{shard};
    std::vector<std::vector<at::Tensor>> out;
    if (rank() == 0) {
      out.emplace_back();
      for (int r = 0; r < world_size(); ++r) {
        out[0].push_back(whole.narrow(0, r * shard.numel(), shard.numel()));
      }
    }
    gather_->gather(out, in)->wait();
  }

  void broadcast_from_first(const at::Tensor& tensor) override {
    std::vector<at::Tensor> tensors{tensor};
    gather_->broadcast(tensors)->wait();
  }

  void barrier() override { gather_->barrier()->wait(); }

 private:
  static PendingPtr pending(c10::intrusive_ptr<c10d::Work> work) {
    return std::make_unique<WorkPending>(std::move(work));
  }

  c10::intrusive_ptr<c10d::ProcessGroup> gather_;
  c10::intrusive_ptr<c10d::ProcessGroup> reduce_;
};

class Done : public Pending {
 public:
  void wait() override {}
};

// One rank: its part is the whole.
class AloneCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  PendingPtr all_gather(const at::Tensor& whole, const at::Tensor& shard) override {
    return copy(whole, shard);
  }
  PendingPtr reduce_scatter_sum(const at::Tensor& shard, const at::Tensor& whole) override {
    return copy(shard, whole);
  }
  PendingPtr all_reduce_sum(const at::Tensor&) override { return std::make_unique<Done>(); }
  void gather_to_first(const at::Tensor& whole, const at::Tensor& shard) override {
    copy(whole, shard);
  }
  void broadcast_from_first(const at::Tensor&) override {}
  void barrier() override {}

 private:
  static PendingPtr copy(const at::Tensor& to, const at::Tensor& from) {
    if (to.data_ptr() != from.data_ptr()) to.copy_(from);
    return std::make_unique<Done>();
  }
};

}  // namespace

std::unique_ptr<Communicator> make_communicator(const std::string& gather_group,
                                                const std::string& reduce_group) {
  require(gather_group.empty() == reduce_group.empty(), "give both group names or neither, got \"",
          gather_group, "\" and \"", reduce_group, "\"");
  if (gather_group.empty()) return std::make_unique<AloneCommunicator>();
  return std::make_unique<GroupCommunicator>(c10d::resolve_process_group(gather_group),
                                             c10d::resolve_process_group(reduce_group));
}

}  // namespace fastsft
