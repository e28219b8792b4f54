#include "checkpoint/saved_form.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <numeric>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/error.h"

namespace fastsft {

std::vector<std::byte> bytes_of(const CarriedTensor& tensor) {
  std::vector<std::byte> bytes(tensor.spec.bytes());
  tensor.bytes(0, bytes);
  return bytes;
}

std::vector<size_t> aligned_order(const std::vector<TensorSpec>& specs) {
  std::vector<size_t> order(specs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t left, size_t right) {
    return dtype_bits(specs[left].dtype) > dtype_bits(specs[right].dtype);
  });
  return order;
}

void SavedForm::carry(TensorSpec spec, std::string data) {
  require(data.size() == spec.bytes(), spec.name, ": expected ", spec.bytes(), " bytes, got ",
          data.size());
  const auto kept = std::make_shared<const std::string>(std::move(data));
  carried.push_back({std::move(spec), [kept](uint64_t offset, std::span<std::byte> to) {
                       const auto from = std::as_bytes(std::span(*kept));
                       std::ranges::copy(from.subspan(offset, to.size()), to.begin());
                     }});
}

void SavedForm::carry(TensorSpec spec, const std::string& path, uint64_t begin) {
  auto& file = files[path];
  if (file == nullptr) file = std::make_shared<const FileBytes>(path);
  require(begin + spec.bytes() <= file->size(), path, ": ", spec.name, ": expected ", spec.bytes(),
          " bytes from byte ", begin, " on, the file has ", file->size());
  carried.push_back({std::move(spec), [file, begin](uint64_t offset, std::span<std::byte> to) {
                       file->read_at(begin + offset, to);
                     }});
}

namespace {

constexpr std::string_view kLayers = "model.layers.";

// a layer's modules in the order in which transformers registers them
constexpr std::array<std::string_view, 18> kModules = {
    "self_attn.q_proj", "self_attn.k_proj",        "self_attn.v_proj",
    "self_attn.o_proj", "self_attn.qkv_proj",      "self_attn.q_norm",
    "self_attn.k_norm", "mlp.gate_proj",           "mlp.up_proj",
    "mlp.gate_up_proj", "mlp.down_proj",           "mlp.gate.",
    "mlp.experts.",     "block_sparse_moe.gate.",  "block_sparse_moe.experts.",
    "input_layernorm",  "post_attention_layernorm"};
// an expert's projections in this order
constexpr std::array<std::string_view, 6> kProjections = {"gate_proj", "up_proj", "down_proj",
                                                          "w1",        "w2",      "w3"};

// model part, layer, module, expert, its projection, true for a bias
using Position = std::tuple<int, int64_t, size_t, int64_t, size_t, bool>;

// Returns the expert's number in "<number>.<projection>.weight", and its projection's place.
std::pair<int64_t, size_t> place_of_expert(std::string_view name) {
  int64_t expert = 0;
  std::from_chars(name.data(), name.data() + name.size(), expert);
  const std::string_view rest = name.substr(std::min(name.find('.') + 1, name.size()));
  const auto projection =
      std::find_if(kProjections.begin(), kProjections.end(),
                   [&](std::string_view known) { return rest.substr(0, rest.find('.')) == known; });
  return {expert, static_cast<size_t>(projection - kProjections.begin())};
}

Position position(const ParamSlot& slot) {
  if (slot.file_order >= 0) return {0, slot.file_order, 0, 0, 0, false};
  const std::string_view name = slot.name;
  const bool bias = name.ends_with(".bias");
  if (name.starts_with("model.embed_tokens.")) return {0, 0, 0, 0, 0, bias};
  if (!name.starts_with(kLayers)) return {name.starts_with("model.") ? 2 : 3, 0, 0, 0, 0, bias};
  const std::string_view rest = name.substr(kLayers.size());
  int64_t layer = 0;
  std::from_chars(rest.data(), rest.data() + rest.size(), layer);
  const std::string_view inside = rest.substr(std::min(rest.find('.') + 1, rest.size()));
  const auto module = std::find_if(kModules.begin(), kModules.end(), [&](std::string_view known) {
    return !known.empty() && inside.starts_with(known);
  });
  const auto number = static_cast<size_t>(module - kModules.begin());
  if (module == kModules.end() || !module->ends_with("experts.")) {
    return {1, layer, number, 0, 0, bias};
  }
  const auto [expert, projection] = place_of_expert(inside.substr(module->size()));
  return {1, layer, number, expert, projection, bias};
}

}  // namespace

std::vector<TensorPlace> state_dict_order(std::span<const UnitState> units) {
  std::vector<TensorPlace> places;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    for (const auto& slot : units[unit].unit->slots()) places.push_back({unit, &slot});
  }
  std::stable_sort(places.begin(), places.end(), [](const auto& left, const auto& right) {
    return position(*left.slot) < position(*right.slot);
  });
  return places;
}

}  // namespace fastsft
