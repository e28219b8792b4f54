#include "sync/sync_plan.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <set>
#include <sstream>

#include "core/error.h"

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

using Wide = unsigned __int128;

constexpr Wide wide(uint64_t high, uint64_t low) { return (static_cast<Wide>(high) << 64) | low; }

class Fingerprint {
 public:
  void add(uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) mix(static_cast<unsigned char>(number >> shift));
  }
  void add(std::string_view text) {
    add(text.size());
    for (char byte : text) mix(static_cast<unsigned char>(byte));
  }
  std::string hex() const {
    char text[33];
    std::snprintf(text, sizeof text, "%016llx%016llx",
                  static_cast<unsigned long long>(state_ >> 64),
                  static_cast<unsigned long long>(state_));
    return text;
  }

 private:
  void mix(unsigned char byte) { state_ = (state_ ^ byte) * wide(0x1000000, 0x13b); }

  Wide state_ = wide(0x6c62272e07bb0142, 0x62b821756295c58d);
};

// Returns the 128-bit FNV-1a hash of tensors and tied names. Each part is preceded by its length.
std::string plan_hash(const std::vector<TensorSpec>& tensors, const std::vector<TiedName>& tied) {
  Fingerprint fingerprint;
  fingerprint.add(tensors.size());
  for (const auto& tensor : tensors) {
    fingerprint.add(tensor.name);
    fingerprint.add(dtype_name(tensor.dtype));
    fingerprint.add(tensor.shape.size());
    for (uint64_t size : tensor.shape) fingerprint.add(size);
  }
  for (const auto& [name, owner] : tied) {
    fingerprint.add(name);
    fingerprint.add(owner);
  }
  return fingerprint.hex();
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

namespace {

std::string shape_text(const std::vector<uint64_t>& shape) {
  std::ostringstream text;
  text << "[";
  for (size_t i = 0; i < shape.size(); ++i) text << (i == 0 ? "" : ", ") << shape[i];
  text << "]";
  return text.str();
}

std::string kind(const TensorSpec& tensor) {
  return torch_dtype_name(tensor.dtype) + " " + shape_text(tensor.shape);
}

bool has(const SyncPlan& plan, const std::string& name) {
  return std::any_of(plan.tensors().begin(), plan.tensors().end(),
                     [&](const TensorSpec& tensor) { return tensor.name == name; });
}

// Returns a sentence about a tensor of `from` that `in` lacks, or "". Callers check this first,
// because a missing name also changes the order of all later names.
std::string missing_name(const SyncPlan& from, const SyncPlan& in, const std::string& where) {
  for (const auto& tensor : from.tensors()) {
    if (!has(in, tensor.name)) return concat("tensor ", tensor.name, " is missing in ", where);
  }
  return "";
}

std::string tied_text(const SyncPlan& plan) {
  std::string text;
  for (const auto& [name, owner] : plan.tied()) text += " " + name + " = " + owner;
  return text.empty() ? " nothing" : text;
}

}  // namespace

std::string SyncPlan::difference(const SyncPlan& other, const std::string& ours,
                                 const std::string& theirs) const {
  if (hash() == other.hash()) return "";
  std::string missing = missing_name(*this, other, theirs);
  if (missing.empty()) missing = missing_name(other, *this, ours);
  if (!missing.empty()) return missing;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const TensorSpec &mine = tensors_[i], &their = other.tensors_[i];
    if (mine.name != their.name) {
      return concat("tensor ", i, " is ", mine.name, " in ", ours, " and ", their.name, " in ",
                    theirs, ": the order differs");
    }
    if (mine.dtype != their.dtype || mine.shape != their.shape) {
      return concat("tensor ", mine.name, " is ", kind(mine), " in ", ours, " and ", kind(their),
                    " in ", theirs);
    }
  }
  return concat("tied names differ: ", ours, " has", tied_text(*this), ", ", theirs, " has",
                tied_text(other));
}

}  // namespace fastsft
