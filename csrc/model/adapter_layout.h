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

using AdapterGroup = LinearGroup;  // adapters of linears that read the same input
inline constexpr size_t kBlockAdapterGroups = kBlockLinearGroups.size();
inline constexpr size_t kAdapterGroups = kBlockAdapterGroups + 1;

// What memory an engine needs for its adapters.
struct AdapterSizes {
  std::array<int64_t, kAdapterGroups> ranks{};  // of a group together, the most of all layers
  bool dropout = false;
  int64_t first_layer = 0;  // backward reaches none below it

  int64_t rank(AdapterGroup group) const { return ranks[static_cast<size_t>(group)]; }
  int64_t largest_block_rank() const;
  bool any() const { return largest_block_rank() > 0 || rank(AdapterGroup::kHead) > 0; }
};

// An adapter inside its group: columns [begin, begin + outputs) of the group's result.
struct AdapterPlace {
  std::string module;
  int64_t rank = 0;
  double scale = 1;
  int64_t inputs = 0, begin = 0, outputs = 0;
  uint32_t number = 0;  // of the linear in the model: tells masks apart
};

// The adapters of a model, checked. std::invalid_argument for a module that the model does not
// have, one that is given twice, a rank, scale or dropout that is none, and `embed_tokens`.
class AdapterLayout {
 public:
  AdapterLayout(const ModelConfig& config, const AdapterOptions& options);

  // In the order of the group's columns. `layer` does not count for the head.
  std::vector<AdapterPlace> places(AdapterGroup group, int64_t layer) const;
  // The tensors: the A of a group one matrix, each B its own.
  std::vector<ParamGroup> tensors(AdapterGroup group, int64_t layer) const;
  AdapterSizes sizes() const;

 private:
  const ModelConfig& config_;
  const AdapterOptions& options_;
};

std::string adapter_a(const std::string& module);
std::string adapter_b(const std::string& module);

}  // namespace fastsft
