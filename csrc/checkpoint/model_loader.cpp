#include "checkpoint/model_loader.h"

#include <algorithm>
#include <memory>

#include "checkpoint/all_or_none.h"
#include "checkpoint/float_conversion.h"
#include "checkpoint/local_range.h"
#include "core/error.h"
#include "storage/model_index.h"
#include "storage/safetensors_reader.h"

namespace fastsft {
namespace {

constexpr size_t kMaxListed = 10;
constexpr const char* kHead = "lm_head.weight";
// ending of a rotary table's tensor name
constexpr const char* kRotaryTable = "rotary_emb.inv_freq";

template <typename Sizes>
std::string shape_text(const Sizes& shape) {
  std::string text = "[";
  for (const auto size : shape) text += (text.size() == 1 ? "" : ", ") + std::to_string(size);
  return text + "]";
}

std::string listed(const std::vector<std::string>& names) {
  std::string text = std::to_string(names.size()) + " (";
  for (size_t i = 0; i < std::min(names.size(), kMaxListed); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  return text + (names.size() > kMaxListed ? ", ...)" : ")");
}

// Returns the index of the optimizer state tensor `name`, which must have a value per element.
size_t kept_place(const UnitState& state, const std::string& name) {
  const StateSpecs& specs = state.kept();
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].name == name && specs[i].count(state.range()) == state.range().size()) return i;
  }
  throw_invalid("target: expected master, or what the optimizer keeps of each element (",
                names_of(specs), "), got \"", name, "\"");
}

DType stored_dtype(at::ScalarType type, const std::string& where, const std::string& name) {
  switch (type) {
    case at::kFloat:
      return DType::kF32;
    case at::kHalf:
      return DType::kF16;
    case at::kBFloat16:
      return DType::kBF16;
    case at::kDouble:
      return DType::kF64;
    default:
      throw_invalid(where, ": ", name, ": expected floating-point weights, got ",
                    c10::toString(type),
                    "; quantized weights cannot be trained: name the model that they were made of");
  }
}

}  // namespace

ModelLoader::ModelLoader(std::vector<UnitState> units, std::string target)
    : units_(std::move(units)), target_(std::move(target)) {
  if (target_ != kMaster && !units_.empty()) kept_place(units_.front(), target_);
  for (const auto& place : state_dict_order(units_)) {
    if (!place.slot->adapter) places_.emplace(place.slot->name, place);
  }
}

void ModelLoader::set(const std::string& name, DType dtype, std::span<const uint64_t> shape,
                      const std::byte* data, const std::string& where) {
  const auto found = places_.find(name);
  if (found == places_.end()) {
    (name == kHead || name.ends_with(kRotaryTable) ? ignored_ : unknown_).insert(name);
    return;
  }
  const ParamSlot& slot = *found->second.slot;
  const bool fits = std::equal(
      shape.begin(), shape.end(), slot.shape.begin(), slot.shape.end(),
      [](uint64_t got, int64_t expected) { return got == static_cast<uint64_t>(expected); });
  require(fits, where, ": ", name, ": expected shape ", shape_text(slot.shape), ", got ",
          shape_text(shape),
          "; config.json does not describe these weights: copy or download both again");
  require(is_readable_weight(dtype), where, ": ", name, ": expected F32, F16, BF16 or F64, got ",
          dtype_name(dtype),
          "; quantized weights cannot be trained: name the model that they were made of");
  require(seen_.insert(name).second, where, ": ", name, " is in two files");
  store(found->second, dtype, data);
}

void ModelLoader::set_tensor(const std::string& name, const at::Tensor& tensor,
                             const std::string& where) {
  require(tensor.device().is_cpu() && tensor.is_contiguous(), where, ": ", name,
          ": expected a contiguous tensor on the CPU");
  const std::vector<uint64_t> shape(tensor.sizes().begin(), tensor.sizes().end());
  set(name, stored_dtype(tensor.scalar_type(), where, name), shape,
      static_cast<const std::byte*>(tensor.const_data_ptr()), where);
}

void ModelLoader::store(const TensorPlace& place, DType dtype, const std::byte* data) {
  const UnitState& state = units_[place.unit];
  const ElementRange range{place.slot->offset, place.slot->offset + place.slot->numel()};
  if (target_ == kMaster) return store_owned_master(state, range, dtype, data);
  store_owned(state, state.values[kept_place(state, target_)], range, dtype, data);
}

std::vector<std::string> ModelLoader::finish(const std::string& where) const {
  std::vector<std::string> missing;
  for (const auto& [name, place] : places_) {
    if (!seen_.contains(name)) missing.push_back(name);
  }
  const std::vector<std::string> unknown(unknown_.begin(), unknown_.end());
  std::string problems;
  if (!missing.empty()) problems += "; tensors missing: " + listed(missing);
  if (!unknown.empty()) problems += "; tensors that the model does not have: " + listed(unknown);
  require(problems.empty(), where, ": the weights do not belong to this config.json", problems,
          "; copy or download both again");
  return {ignored_.begin(), ignored_.end()};
}

namespace {

using OpenFiles = std::vector<std::unique_ptr<SafetensorsReader>>;

constexpr const char* kHeadWeight = "lm_head.weight";
constexpr const char* kEmbedding = "model.embed_tokens.weight";

std::span<const std::byte> bytes_of(const OpenFiles& readers, const std::string& name) {
  for (const auto& reader : readers) {
    if (const TensorEntry* tensor = reader->find(name)) return reader->bytes(*tensor);
  }
  return {};
}

}  // namespace

std::vector<std::string> read_model(std::vector<UnitState> units, const std::string& directory) {
  OpenFiles readers;
  for (const auto& path : weight_files(directory)) {
    readers.push_back(std::make_unique<SafetensorsReader>(path));
  }
  ModelLoader loader(std::move(units));
  for (const auto& reader : readers) {
    for (const auto& tensor : reader->tensors()) {
      loader.set(tensor.name, tensor.dtype, tensor.shape, reader->bytes(tensor).data(),
                 reader->path());
    }
  }
  std::vector<std::string> notes;
  for (const auto& name : loader.finish(directory)) {
    if (name == kHeadWeight &&
        !std::ranges::equal(bytes_of(readers, kHeadWeight), bytes_of(readers, kEmbedding))) {
      notes.push_back(concat(directory, ": config.json ties the head to the embedding, so ",
                             kHeadWeight, ", which differs from ", kEmbedding, ", is ignored"));
    }
  }
  return notes;
}

std::vector<std::string> load_model(Strategy& strategy, Communicator& all,
                                    const std::string& directory) {
  std::vector<std::string> notes;
  AllOrNone attempt;
  attempt.run([&] { notes = read_model(strategy.all_states(), directory); });
  attempt.finish(all, strategy.device(), "loading the model " + directory);
  return notes;
}

}  // namespace fastsft
