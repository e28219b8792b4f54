#include "shard/communicator.h"

#include <ATen/core/Tensor.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/rank_status.h"
#include "core/trace.h"
#include "data/device_event.h"

namespace fastsft {
namespace {

// The timeline span of a collective. On the CPU it ends when a caller has waited for the result. On
// a device, where a wait only orders streams, it ends when the device has finished.
class CollectiveSpan {
 public:
  CollectiveSpan(trace::Track track, const std::string& name) : track_(track) {
    if (trace::Recorder::on()) span_ = trace::Recorder::instance().begin(track, name);
  }
  // Records the span's end on a device. Call after the collective is enqueued; `wait` orders the
  // current stream after the collective.
  void enqueued(at::Device device, const std::function<void()>& wait);
  void waited() { trace::Recorder::instance().end(std::exchange(span_, 0)); }

 private:
  trace::Track track_;
  uint64_t span_ = 0;
};

// Returns a track's stream, always the same stream. The pool behind `side_stream` is small and
// reuses its streams, so a new stream per collective would soon be a stream with other work.
c10::Stream stream_of(trace::Track track, at::Device device) {
  static std::mutex mutex;
  static std::map<std::pair<trace::Track, at::DeviceIndex>, c10::Stream> streams;
  const std::lock_guard<std::mutex> lock(mutex);
  const std::pair key(track, device.index());
  const auto found = streams.find(key);
  return found != streams.end() ? found->second
                                : streams.emplace(key, *side_stream(device)).first->second;
}

void CollectiveSpan::enqueued(at::Device device, const std::function<void()>& wait) {
  if (span_ == 0 || device.is_cpu()) return;
  // A stream without other work, so that its end mark means the collective's end alone.
  const c10::StreamGuard guard(stream_of(track_, device));
  wait();
  waited();
}

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Runs `work` and turns c10d errors into one sentence that names rank, step, phase and collective.
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
  WorkPending(std::string name, trace::Track track, at::Device device, Watchdog& watchdog,
              const std::function<WorkPtr()>& enqueue)
      : name_(std::move(name)), watchdog_(watchdog), span_(track, name_) {
    RankStatus::instance().set_collective(name_);
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

  bool copies_to_host(const at::Device& device) const override {
    return reduce_->getBackend(device.type())->getBackendName() == "gloo";
  }

  PendingPtr all_gather(const at::Tensor& whole, const at::Tensor& shard,
                        const std::string& what) override {
    return start("all_gather " + what, trace::Track::kGather, whole.device(), [&] {
      at::Tensor out = whole, in = shard;
      return gather_->_allgather_base(out, in);
    });
  }

  PendingPtr reduce_scatter_sum(const at::Tensor& shard, const at::Tensor& whole,
                                const std::string& what) override {
    return start("reduce_scatter " + what, trace::Track::kReduce, whole.device(), [&] {
      at::Tensor out = shard, in = whole;
      return reduce_->_reduce_scatter_base(out, in);
    });
  }

  PendingPtr all_to_all(const at::Tensor& received, const std::vector<int64_t>& received_counts,
                        const at::Tensor& sent, const std::vector<int64_t>& sent_counts,
                        const std::string& what) override {
    return start("all_to_all " + what, trace::Track::kExchange, sent.device(), [&] {
      at::Tensor out = received, in = sent;
      std::vector<int64_t> out_counts = received_counts, in_counts = sent_counts;
      return gather_->alltoall_base(out, in, out_counts, in_counts);
    });
  }

  PendingPtr all_reduce_sum(const at::Tensor& tensor, const std::string& what) override {
    return start("all_reduce " + what, trace::Track::kReduce, tensor.device(), [&] {
      std::vector<at::Tensor> tensors{tensor};
      return reduce_->allreduce(tensors);
    });
  }

  PendingPtr all_reduce_max(const at::Tensor& tensor, const std::string& what) override {
    return start("all_reduce " + what, trace::Track::kReduce, tensor.device(), [&] {
      std::vector<at::Tensor> tensors{tensor};
      c10d::AllreduceOptions options;
      options.reduceOp = c10d::ReduceOp::MAX;
      return reduce_->allreduce(tensors, options);
    });
  }

  void gather_to_rank0(const at::Tensor& whole, const at::Tensor& shard,
                       const std::string& what) override {
    std::vector<at::Tensor> in{shard};
    std::vector<std::vector<at::Tensor>> out;
    if (rank() == 0) {
      out.emplace_back();
      for (int r = 0; r < world_size(); ++r) {
        out[0].push_back(whole.narrow(0, r * shard.numel(), shard.numel()));
      }
    }
    start("gather " + what, trace::Track::kGather, shard.device(), [&] {
      return gather_->gather(out, in);
    })->wait();
  }

 private:
  PendingPtr start(std::string name, trace::Track track, at::Device device,
                   const std::function<WorkPtr()>& enqueue) {
    return std::make_unique<WorkPending>(std::move(name), track, device, watchdog_, enqueue);
  }

  c10::intrusive_ptr<c10d::ProcessGroup> gather_;
  c10::intrusive_ptr<c10d::ProcessGroup> reduce_;
  Watchdog& watchdog_;
};

class Done : public Pending {
 public:
  void wait() override {}
};

// The communicator of a single rank, whose shard is the whole tensor.
class AloneCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  bool copies_to_host(const at::Device&) const override { return false; }
  PendingPtr all_gather(const at::Tensor& whole, const at::Tensor& shard,
                        const std::string&) override {
    return copy(whole, shard);
  }
  PendingPtr reduce_scatter_sum(const at::Tensor& shard, const at::Tensor& whole,
                                const std::string&) override {
    return copy(shard, whole);
  }
  PendingPtr all_to_all(const at::Tensor& received, const std::vector<int64_t>&,
                        const at::Tensor& sent, const std::vector<int64_t>&,
                        const std::string&) override {
    return copy(received, sent);
  }
  PendingPtr all_reduce_sum(const at::Tensor&, const std::string&) override {
    return std::make_unique<Done>();
  }
  PendingPtr all_reduce_max(const at::Tensor&, const std::string&) override {
    return std::make_unique<Done>();
  }
  void gather_to_rank0(const at::Tensor& whole, const at::Tensor& shard,
                       const std::string&) override {
    copy(whole, shard);
  }

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

RankGroups::RankGroups(const GroupNames& names, Watchdog& watchdog)
    : alone_(make_communicator("", "", watchdog)),
      all_(make_communicator(names.gather, names.reduce, watchdog)),
      context_(make_communicator(names.context, names.context, watchdog)) {
  RankStatus::instance().set_rank(all_->rank(), all_->world_size());
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
