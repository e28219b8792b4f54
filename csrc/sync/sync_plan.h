#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "storage/safetensors_writer.h"

namespace fastsft {

// A second name that a model has for a tensor, which is sent as `owner` only.
struct TiedName {
  std::string name;
  std::string owner;
};

// The tensors sent to other processes, in order. File headers, receivers' metadata and the bytes
// sent are all derived from one plan, so they cannot disagree (docs/spec/weight_sync.md, section
// 4.1).
class SyncPlan {
 public:
  // Throws std::invalid_argument for a repeated or empty name, a size that overflows, or an owner
  // that is not sent.
  SyncPlan(std::vector<TensorSpec> tensors, std::vector<TiedName> tied);

  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  const std::vector<TiedName>& tied() const { return tied_; }
  const std::vector<uint64_t>& sizes() const { return sizes_; }  // bytes of each tensor
  uint64_t total_bytes() const { return total_bytes_; }
  // Hash of names, dtypes, shapes, order and tied names, as 32 hex digits; the same on every
  // machine. It protects against mistakes, not against attackers.
  const std::string& hash() const { return hash_; }
  // Returns a sentence about the first difference from `other`, which calls this plan `ours` and
  // the other plan `theirs`; "" if they are equal.
  std::string difference(const SyncPlan& other, const std::string& ours,
                         const std::string& theirs) const;

 private:
  std::vector<TensorSpec> tensors_;
  std::vector<TiedName> tied_;
  std::vector<uint64_t> sizes_;
  uint64_t total_bytes_ = 0;
  std::string hash_;
};

// Checks that all ranks have the same plan. `hashes` are in rank order. Throws
// std::invalid_argument with the ranks whose hash differs from rank 0's.
void check_same_plan(const std::vector<std::string>& hashes);

// Parses a dtype name. Rollout engines write "bfloat16" or "torch.bfloat16", files write "BF16",
// and all three are accepted. Throws std::invalid_argument for any other name, and for dtypes that
// torch lacks.
DType parse_wire_dtype(const std::string& name);

// Returns torch's dtype name without "torch.", such as "bfloat16". `dtype` must be a result of
// `parse_wire_dtype`.
std::string torch_dtype_name(DType dtype);

}  // namespace fastsft
