#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/saved_form.h"
#include "shard/strategy.h"
#include "storage/dtype.h"

namespace fastsft {

// Fills this rank's master weights, or an optimizer state tensor with a value per element, from
// tensors with Hugging Face names, in any order. Only the elements that this rank owns are read.
// Not collective.
class ModelLoader {
 public:
  // The pointers in `units` must outlive the loader. `target`: kMaster, or the name of an optimizer
  // state tensor in trained units. Adapter weights are not expected.
  explicit ModelLoader(std::vector<UnitState> units, std::string target = kMaster);
  static constexpr const char* kMaster = "master";

  // Stores one tensor. `data`: the tensor's elements, as `dtype`. `where`: its file, for messages.
  // Throws std::invalid_argument if shape or dtype does not fit.
  void set(const std::string& name, DType dtype, std::span<const uint64_t> shape,
           const std::byte* data, const std::string& where);
  // Stores a contiguous CPU tensor.
  void set_tensor(const std::string& name, const at::Tensor& tensor, const std::string& where);

  // Throws std::invalid_argument if tensors are missing or unknown to the model; the message lists
  // them. Returns the ignored names: `lm_head.weight` if the model ties it to the embedding, and
  // rotary tables, which old checkpoints contain (docs/spec/trainer_semantics.md, section 24).
  std::vector<std::string> finish(const std::string& where) const;

 private:
  void store(const TensorPlace& place, DType dtype, const std::byte* data);

  std::vector<UnitState> units_;
  std::string target_;
  std::map<std::string, TensorPlace> places_;
  std::set<std::string> seen_;
  std::set<std::string> unknown_;
  std::set<std::string> ignored_;
};

// Loads a Hugging Face directory's safetensors weights into the master weights. Collective. Files
// are mapped, and each rank reads only the bytes of the elements it owns. All ranks throw if one
// fails. Adapters stay unchanged. Returns notices for the user, for example about a head that a
// model with tied weights ignores.
std::vector<std::string> load_model(Strategy& strategy, Communicator& all,
                                    const std::string& directory);
// Loads the weights into `units` on this rank only.
std::vector<std::string> read_model(std::vector<UnitState> units, const std::string& directory);

}  // namespace fastsft
