#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace fastsft {

inline constexpr int64_t kAlignment = 128;  // elements

// Elements [begin, end) of a unit's flat buffer.
struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return std::max<int64_t>(end - begin, 0); }
  ElementRange intersection(const ElementRange& other) const {
    return {std::max(begin, other.begin), std::min(end, other.end)};
  }
};

// One Hugging Face tensor inside a unit.
struct ParamSlot {
  std::string name;  // "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;
  int64_t offset = 0;      // elements from the start of the unit
  bool decay = false;      // weight decay applies (docs/spec/trainer_semantics.md, section 10.1)
  bool adapter = false;    // not part of the model's own files
  bool held = false;       // never changes although its group is trained: its gradient is zero
  bool embedding = false;  // a table that is looked up in, also where it is a head, too
  bool linear = false;     // a weight of a block, which FrozenDtype::kNf4 is about
  // Its number among the tensors of the files; -1: by the names of the native families.
  int64_t file_order = -1;

  int64_t numel() const;
};

// Tensors concatenated by rows without gaps, so that together they are one matrix: [q; k; v].
struct ParamGroup {
  std::vector<ParamSlot> slots;
};

// The layout of one flat buffer: parameters that are gathered, reduced and updated together.
// Groups with weight decay first, then the others; each group begins at a multiple of kAlignment.
// Offsets do not depend on the number of ranks; only the padding at the end does.
class ParamUnit {
 public:
  // `groups` in the order of the model; the decay groups are moved to the front, order kept.
  ParamUnit(std::string name, std::vector<ParamGroup> groups);

  const std::string& name() const { return name_; }
  const std::vector<ParamSlot>& slots() const { return slots_; }
  const ParamSlot& slot(const std::string& name) const;
  const ParamSlot* find(const std::string& name) const;  // null: the unit has none

  int64_t numel() const { return numel_; }          // up to the end of the last tensor
  int64_t decay_end() const { return decay_end_; }  // [0, decay_end) decays
  // [0, linear_end) holds the linears of a block and nothing else; a multiple of kAlignment.
  int64_t linear_end() const { return linear_end_; }
  int64_t padded_numel(int world_size) const;  // multiple of kAlignment * world_size
  int64_t shard_numel(int world_size) const;   // what one rank owns
  // Names, shapes and offsets, as 16 hex digits; equal for every number of ranks.
  std::string hash() const;

 private:
  std::string name_;
  std::vector<ParamSlot> slots_;
  int64_t numel_ = 0;
  int64_t decay_end_ = 0;
  int64_t linear_end_ = 0;
};

int64_t elements_of(const std::vector<ParamUnit>& units);  // of all tensors, without padding

}  // namespace fastsft
