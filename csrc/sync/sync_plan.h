#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "storage/safetensors_writer.h"

namespace fastsft {

// A name under which a model also knows a tensor that goes over the wire as `owner` only.
struct TiedName {
  std::string name;
  std::string owner;
};

// What goes to other processes, in its order. File headers, receivers' metadata and the bytes sent
// all come from one plan, so that they cannot disagree (docs/spec/weight_sync.md, section 4.1).
class SyncPlan {
 public:
  // std::invalid_argument: a name twice or empty, a size that overflows, an owner that is not sent.
  SyncPlan(std::vector<TensorSpec> tensors, std::vector<TiedName> tied);

  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  const std::vector<TiedName>& tied() const { return tied_; }
  const std::vector<uint64_t>& sizes() const { return sizes_; }  // bytes, of each tensor
  uint64_t total_bytes() const { return total_bytes_; }
  // Names, dtypes, shapes, their order and the tied names, as 32 hex digits; equal on every machine
  // and in every process. A fingerprint against mistakes, not against attackers.
  const std::string& hash() const { return hash_; }
  // The first place where `other` is not this plan, as a sentence that calls this one `ours` and
  // the other `theirs`; "" when they are equal.
  std::string difference(const SyncPlan& other, const std::string& ours,
                         const std::string& theirs) const;

 private:
  std::vector<TensorSpec> tensors_;
  std::vector<TiedName> tied_;
  std::vector<uint64_t> sizes_;
  uint64_t total_bytes_ = 0;
  std::string hash_;
};

// `hashes` of all ranks, in their order. std::invalid_argument names the ranks whose plan is not
// rank 0's.
void check_same_plan(const std::vector<std::string>& hashes);

// Rollout engines write "bfloat16" or "torch.bfloat16" where files write "BF16"; all three name the
// same type. std::invalid_argument for a name that none of them uses, or that torch does not have.
DType parse_wire_dtype(const std::string& name);

// torch's name without its prefix: "bfloat16". Only for what `parse_wire_dtype` returned.
std::string torch_dtype_name(DType dtype);

}  // namespace fastsft
