#include "shard/communicator.h"

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include <functional>
#include <vector>

#include "core/error.h"
#include "core/whereabouts.h"
#include "shard/collective_span.h"

namespace fastsft {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Errors of c10d become one sentence that names rank, step, phase and collective.
template <typename Work>
auto attempt(const std::string& name, const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception& error) {
    throw CollectiveError(name, error.what());
  }
}

class WorkPending : public Pending {
 public:
  WorkPending(std::string name, trace::Lane lane, at::Device device, Watchdog& watchdog,
              const std::function<WorkPtr()>& enqueue)
      : name_(std::move(name)), watchdog_(watchdog), span_(lane, name_) {
    Whereabouts::instance().set_collective(name_);
    work_ = attempt(name_, enqueue);
    span_.enqueued(device, [this] { work_->wait(); });
  }

  void wait() override {
    if (!work_) return;
    auto work = std::move(work_);
    const Watchdog::Wait watched(watchdog_);
    attempt(name_, [&] { return work->wait(); });
    span_.waited();
  }

 private:
  std::string name_;
  Watchdog& watchdog_;
  CollectiveSpan span_;
  WorkPtr work_;
};

class GroupCommunicator : public Communicator {
 public:
  GroupCommunicator(c10::intrusive_ptr<c10d::ProcessGroup> gather,
                    c10::intrusive_ptr<c10d::ProcessGroup> reduce, Watchdog& watchdog)
      : gather_(std::move(gather)), reduce_(std::move(reduce)), watchdog_(watchdog) {
    require(gather_->getRank() == reduce_->getRank() && gather_->getSize() == reduce_->getSize(),
            "the gather and the reduce group must hold the same ranks in the same order");
  }

  int rank() const override { return gather_->getRank(); }
  int world_size() const override { return gather_->getSize(); }

  PendingPtr all_gather(const at::Tensor& whole, const at::Tensor& shard,
                        const std::string& what) override {
    return start("all_gather " + what, trace::Lane::kGather, whole.device(), [&] {
      at::Tensor out = whole, in = shard;
      return gather_->_allgather_base(out, in);
    });
  }

  PendingPtr reduce_scatter_sum(const at::Tensor& shard, const at::Tensor& whole,
                                const std::string& what) override {
    return start("reduce_scatter " + what, trace::Lane::kReduce, whole.device(), [&] {
      at::Tensor out = shard, in = whole;
      return reduce_->_reduce_scatter_base(out, in);
    });
  }

  PendingPtr all_reduce_sum(const at::Tensor& tensor, const std::string& what) override {
    return start("all_reduce " + what, trace::Lane::kReduce, tensor.device(), [&] {
      std::vector<at::Tensor> tensors{tensor};
      return reduce_->allreduce(tensors);
    });
  }

  PendingPtr all_reduce_max(const at::Tensor& tensor, const std::string& what) override {
    return start("all_reduce " + what, trace::Lane::kReduce, tensor.device(), [&] {
      std::vector<at::Tensor> tensors{tensor};
      c10d::AllreduceOptions options;
      options.reduceOp = c10d::ReduceOp::MAX;
      return reduce_->allreduce(tensors, options);
    });
  }

  void gather_to_first(const at::Tensor& whole, const at::Tensor& shard,
                       const std::string& what) override {
    std::vector<at::Tensor> in{shard};
    std::vector<std::vector<at::Tensor>> out;
    if (rank() == 0) {
      out.emplace_back();
      for (int r = 0; r < world_size(); ++r) {
        out[0].push_back(whole.narrow(0, r * shard.numel(), shard.numel()));
      }
    }
    start("gather " + what, trace::Lane::kGather, shard.device(), [&] {
      return gather_->gather(out, in);
    })->wait();
  }

  void broadcast_from_first(const at::Tensor& tensor, const std::string& what) override {
    std::vector<at::Tensor> tensors{tensor};
    start("broadcast " + what, trace::Lane::kGather, tensor.device(), [&] {
      return gather_->broadcast(tensors);
    })->wait();
  }

 private:
  PendingPtr start(std::string name, trace::Lane lane, at::Device device,
                   const std::function<WorkPtr()>& enqueue) {
    return std::make_unique<WorkPending>(std::move(name), lane, device, watchdog_, enqueue);
  }

  c10::intrusive_ptr<c10d::ProcessGroup> gather_;
  c10::intrusive_ptr<c10d::ProcessGroup> reduce_;
  Watchdog& watchdog_;
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
  PendingPtr all_gather(const at::Tensor& whole, const at::Tensor& shard,
                        const std::string&) override {
    return copy(whole, shard);
  }
  PendingPtr reduce_scatter_sum(const at::Tensor& shard, const at::Tensor& whole,
                                const std::string&) override {
    return copy(shard, whole);
  }
  PendingPtr all_reduce_sum(const at::Tensor&, const std::string&) override {
    return std::make_unique<Done>();
  }
  PendingPtr all_reduce_max(const at::Tensor&, const std::string&) override {
    return std::make_unique<Done>();
  }
  void gather_to_first(const at::Tensor& whole, const at::Tensor& shard,
                       const std::string&) override {
    copy(whole, shard);
  }
  void broadcast_from_first(const at::Tensor&, const std::string&) override {}

 private:
  static PendingPtr copy(const at::Tensor& to, const at::Tensor& from) {
    if (to.data_ptr() != from.data_ptr()) to.copy_(from);
    return std::make_unique<Done>();
  }
};

}  // namespace

std::unique_ptr<Communicator> make_communicator(const std::string& gather_group,
                                                const std::string& reduce_group,
                                                Watchdog& watchdog) {
  require(gather_group.empty() == reduce_group.empty(), "give both group names or neither, got \"",
          gather_group, "\" and \"", reduce_group, "\"");
  if (gather_group.empty()) return std::make_unique<AloneCommunicator>();
  auto gather = c10d::resolve_process_group(gather_group);
  if (gather->getSize() == 1) return std::make_unique<AloneCommunicator>();
  return std::make_unique<GroupCommunicator>(std::move(gather),
                                             c10d::resolve_process_group(reduce_group), watchdog);
}

}  // namespace fastsft
