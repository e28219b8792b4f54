#include <algorithm>
#include <sstream>

#include "core/error.h"
#include "sync/sync_plan.h"

namespace fastsft {
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

// A name that only one of the two has explains more than the order that it upsets.
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
