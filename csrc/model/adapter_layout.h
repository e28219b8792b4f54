#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "model/adapters.h"
#include "model/config.h"
#include "model/linears.h"
#include "shard/param_unit.h"

namespace fastsft {

using AdapterGroup = LinearGroup;  // the adapters of linears with the same input
inline constexpr size_t kBlockAdapterGroups = kBlockLinearGroups.size();
inline constexpr size_t kAdapterGroups = kBlockAdapterGroups + 1;

// The sizes that determine an engine's memory for adapters.
struct AdapterSizes {
  std::array<int64_t, kAdapterGroups> ranks{};  // total rank of each group; maximum over layers
  bool dropout = false;
  int64_t first_layer = 0;  // backward stops above the layers below

  int64_t rank(AdapterGroup group) const { return ranks[static_cast<size_t>(group)]; }
  int64_t largest_block_rank() const;
  bool any() const { return largest_block_rank() > 0 || rank(AdapterGroup::kHead) > 0; }
};

// An adapter in its group. It adds to the columns [begin, begin + outputs) of the group's output.
struct AdapterPlace {
  std::string module;
  int64_t rank = 0;
  double scale = 1;
  int64_t inputs = 0, begin = 0, outputs = 0;
  uint32_t number = 0;  // the linear's number in the model; selects its dropout masks
};

// A model's adapters, after checks. Throws std::invalid_argument for an unknown or repeated module,
// for `embed_tokens`, and for a bad rank, scale or dropout.
class AdapterLayout {
 public:
  AdapterLayout(const ModelConfig& config, const AdapterOptions& options);

  // Returns the group's adapters, ordered by output columns. `layer` is ignored for the head.
  std::vector<AdapterPlace> places(AdapterGroup group, int64_t layer) const;
  // Returns the group's tensors: all A in one matrix, each B in its own matrix.
  std::vector<ParamGroup> tensors(AdapterGroup group, int64_t layer) const;
  AdapterSizes sizes() const;

 private:
  const ModelConfig& config_;
  const AdapterOptions& options_;
};

std::string adapter_a(const std::string& module);
std::string adapter_b(const std::string& module);

}  // namespace fastsft
