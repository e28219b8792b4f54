#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace fastsft {

inline constexpr int64_t kAlignment = 128;  // elements

// The elements [begin, end) of a unit's flat buffer.
struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return std::max<int64_t>(end - begin, 0); }
  ElementRange intersection(const ElementRange& other) const {
    return {std::max(begin, other.begin), std::min(end, other.end)};
  }
};

// One Hugging Face tensor in a unit.
struct ParamSlot {
  std::string name;  // for example "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;
  int64_t offset = 0;      // elements from the unit's start
  bool decay = false;      // has weight decay (docs/spec/trainer_semantics.md, section 10.1)
  bool adapter = false;    // belongs to an adapter, not to the model's own files
  bool held = false;       // stays constant although its group is trained: its gradient is zero
  bool embedding = false;  // an embedding table, also if it is tied to the head
  bool linear = false;     // a block's weight matrix, which FrozenDtype::kNf4 stores in 4 bits
  // Number among all tensors of the weight files; -1: the order follows from the name (native
  // models).
  int64_t file_order = -1;

  int64_t numel() const;
};

// Tensors concatenated by rows without gaps, so that they form one matrix, such as [q; k; v].
struct ParamGroup {
  std::vector<ParamSlot> slots;
};

// The layout of one flat buffer of parameters, which are gathered, reduced and updated together.
// Groups with weight decay come first; each group begins at a multiple of kAlignment. Offsets do
// not depend on the rank count; only the padding at the end does.
class ParamUnit {
 public:
  // `groups`: in the model's order. Groups with weight decay are moved to the front; otherwise the
  // order stays.
  ParamUnit(std::string name, std::vector<ParamGroup> groups);

  const std::string& name() const { return name_; }
  const std::vector<ParamSlot>& slots() const { return slots_; }
  const ParamSlot& slot(const std::string& name) const;
  const ParamSlot* find(const std::string& name) const;  // null if the unit has no such tensor

  int64_t numel() const { return numel_; }          // end of the last tensor
  int64_t decay_end() const { return decay_end_; }  // elements [0, decay_end) have weight decay
  // Returns a multiple of kAlignment. The elements [0, linear_end) are the block's linears only.
  int64_t linear_end() const { return linear_end_; }
  int64_t padded_numel(int world_size) const;  // a multiple of kAlignment * world_size
  int64_t shard_numel(int world_size) const;   // element count per rank
  // Returns a hash of names, shapes and offsets as 16 hex digits, equal for every rank count.
  std::string hash() const;

 private:
  std::string name_;
  std::vector<ParamSlot> slots_;
  int64_t numel_ = 0;
  int64_t decay_end_ = 0;
  int64_t linear_end_ = 0;
};

int64_t elements_of(const std::vector<ParamUnit>& units);  // without padding

}  // namespace fastsft
