#include "sync/sync_plan.h"

#include <set>

#include "core/error.h"
#include "sync/plan_hash.h"

namespace fastsft {
namespace {

uint64_t checked_bytes(const TensorSpec& spec) {
  uint64_t elements = 1;
  bool overflow = false;
  for (uint64_t size : spec.shape) {
    overflow = overflow || __builtin_mul_overflow(elements, size, &elements);
  }
  const auto bytes = dtype_bytes(spec.dtype, elements);
  require(!overflow && bytes.has_value(), "tensor ", spec.name,
          ": its shape has more bytes than 64 bits can count");
  return *bytes;
}

void check_names(const std::vector<TensorSpec>& tensors, const std::vector<TiedName>& tied) {
  std::set<std::string> sent, names;
  for (const auto& tensor : tensors) {
    require(!tensor.name.empty(), "a tensor without a name; every tensor of a plan needs one");
    require(sent.insert(tensor.name).second, "tensor ", tensor.name, " is twice in the plan");
  }
  names = sent;
  for (const auto& [name, owner] : tied) {
    require(names.insert(name).second, "tied tensor ", name, " is twice in the plan");
    require(sent.contains(owner), "tensor ", name, " is tied to ", owner,
            ", which is not in the plan");
  }
}

}  // namespace

SyncPlan::SyncPlan(std::vector<TensorSpec> tensors, std::vector<TiedName> tied)
    : tensors_(std::move(tensors)), tied_(std::move(tied)) {
  check_names(tensors_, tied_);
  for (const auto& tensor : tensors_) {
    sizes_.push_back(checked_bytes(tensor));
    require(!__builtin_add_overflow(total_bytes_, sizes_.back(), &total_bytes_),
            "the plan has more bytes than 64 bits can count");
  }
  hash_ = plan_hash(tensors_, tied_);
}

void check_same_plan(const std::vector<std::string>& hashes) {
  std::string others;
  for (size_t rank = 0; rank < hashes.size(); ++rank) {
    if (hashes[rank] != hashes[0]) others += (others.empty() ? "" : ", ") + std::to_string(rank);
  }
  require(others.empty(), "weight sync: the model of rank ", others,
          " is not that of rank 0 (names, dtypes, shapes or their order differ); build the same "
          "model on every rank");
}

}  // namespace fastsft
