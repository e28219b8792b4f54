#include "model/adapter_layout.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.h"

namespace fastsft {
namespace {

std::string module_of(const Linear& linear, int64_t layer) {
  if (linear.group == AdapterGroup::kHead) return linear.name;
  return "model.layers." + std::to_string(layer) + "." + linear.name;
}

void check(const ModelConfig& config, const AdapterOptions& options) {
  require(options.dropout >= 0 && options.dropout < 1, "adapters: dropout is ", options.dropout,
          ", expected a number from 0 to below 1");
  std::set<std::string> known, seen;
  for (const auto& linear : linears_of(config)) {
    const int64_t layers = linear.group == AdapterGroup::kHead ? 1 : config.num_layers;
    for (int64_t layer = 0; layer < layers; ++layer) known.insert(module_of(linear, layer));
  }
  for (const auto& linear : options.linears) {
    require(!linear.module.ends_with("embed_tokens"), "adapters: \"", linear.module,
            "\" is an embedding, which has no adapter here; train its weight whole, or leave it");
    require(known.contains(linear.module), "adapters: the model has no linear \"", linear.module,
            "\"");
    require(seen.insert(linear.module).second, "adapters: \"", linear.module, "\" is given twice");
    require(linear.rank > 0, "adapters: ", linear.module, ": rank is ", linear.rank,
            ", expected at least 1");
    require(std::isfinite(linear.scale), "adapters: ", linear.module, ": scale is ", linear.scale,
            ", expected a finite number");
  }
}

ParamSlot adapter_matrix(std::string name, int64_t rows, int64_t columns) {
  return {.name = std::move(name),
          .shape = {rows, columns},
          .offset = 0,
          .decay = true,
          .adapter = true};
}

}  // namespace

std::string adapter_a(const std::string& module) { return module + ".lora_A.weight"; }
std::string adapter_b(const std::string& module) { return module + ".lora_B.weight"; }

int64_t AdapterSizes::largest_block_rank() const {
  return *std::max_element(ranks.begin(), ranks.begin() + kBlockAdapterGroups);
}

AdapterLayout::AdapterLayout(const ModelConfig& config, const AdapterOptions& options)
    : config_(config), options_(options) {
  check(config, options);
}

std::vector<AdapterPlace> AdapterLayout::places(AdapterGroup group, int64_t layer) const {
  std::vector<AdapterPlace> result;
  if (options_.linears.empty()) return result;
  const std::vector<Linear> linears = linears_of(config_);
  int64_t begin = 0;
  for (size_t i = 0; i < linears.size(); ++i) {
    const Linear& linear = linears[i];
    if (linear.group != group) continue;
    const std::string module = module_of(linear, layer);
    for (const auto& given : options_.linears) {
      if (given.module != module) continue;
      result.push_back({.module = module,
                        .rank = given.rank,
                        .scale = given.scale,
                        .inputs = linear.inputs,
                        .begin = begin,
                        .outputs = linear.outputs,
                        .number = static_cast<uint32_t>(layer) * 8u + static_cast<uint32_t>(i)});
    }
    begin += linear.outputs;
  }
  return result;
}

std::vector<ParamGroup> AdapterLayout::tensors(AdapterGroup group, int64_t layer) const {
  const std::vector<AdapterPlace> adapters = places(group, layer);
  if (adapters.empty()) return {};
  std::vector<ParamGroup> groups(1);
  for (const auto& place : adapters) {
    groups[0].slots.push_back(adapter_matrix(adapter_a(place.module), place.rank, place.inputs));
    groups.push_back({{adapter_matrix(adapter_b(place.module), place.outputs, place.rank)}});
  }
  return groups;
}

AdapterSizes AdapterLayout::sizes() const {
  AdapterSizes sizes{.dropout = options_.dropout > 0 && !options_.linears.empty()};
  for (size_t group = 0; group < kAdapterGroups; ++group) {
    const auto kind = static_cast<AdapterGroup>(group);
    const int64_t layers = kind == AdapterGroup::kHead ? 1 : config_.num_layers;
    for (int64_t layer = 0; layer < layers; ++layer) {
      int64_t sum = 0;
      for (const auto& place : places(kind, layer)) sum += place.rank;
      sizes.ranks[group] = std::max(sizes.ranks[group], sum);
    }
  }
  return sizes;
}

}  // namespace fastsft
