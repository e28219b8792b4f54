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

// Fills the master weights of this rank, or what the optimizer keeps of each element, from tensors
// given by their Hugging Face names, in any order; of each only the owned elements are read. No
// collectives.
class ModelLoader {
 public:
  // Of adapters nothing is expected. What the units are of must outlive the loader. target: master,
  // or a name of the optimizer's state, of units that are trained.
  explicit ModelLoader(std::vector<UnitState> units, std::string target = kMaster);
  static constexpr const char* kMaster = "master";

  // `data` holds the tensor's elements, of type `dtype`. `where` names its file in messages.
  // std::invalid_argument when the shape or the type does not fit.
  void set(const std::string& name, DType dtype, std::span<const uint64_t> shape,
           const std::byte* data, const std::string& where);
  // The same of a contiguous tensor on the CPU.
  void set_tensor(const std::string& name, const at::Tensor& tensor, const std::string& where);

  // Throws std::invalid_argument naming the tensors that are missing, and those that the model does
  // not have. Returns the names ignored on purpose: `lm_head.weight` when the model ties it to the
  // embedding, and the rotary tables that old checkpoints contain (docs/spec/trainer_semantics.md,
  // section 24).
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

// Collective: reads the safetensors weights of a Hugging Face directory into the master weights.
// Files are mapped, and each rank touches only the bytes of its own ranges. All ranks throw when
// one fails. Adapters stay as they are. Returns sentences that the user should see, such as a head
// that a tied model ignores.
std::vector<std::string> load_model(Strategy& strategy, Communicator& all,
                                    const std::string& directory);
// The same into `units`, on this rank alone.
std::vector<std::string> read_model(std::vector<UnitState> units, const std::string& directory);

}  // namespace fastsft
