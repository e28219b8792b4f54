#include "checkpoint/model_ranges.h"

#include <algorithm>
#include <functional>

#include "checkpoint/float_conversion.h"
#include "checkpoint/host_values.h"
#include "core/error.h"
#include "storage/byte_source.h"
#include "storage/model_index.h"

namespace fastsft {
namespace {

using Sink = std::function<void(uint64_t offset, std::span<const std::byte>)>;

constexpr uint64_t kBlock = 4 << 20;  // bytes of a carried tensor that are in memory at a time

// Passes to `sink` the bytes of a tensor that no unit holds (carried over from the source files).
void for_carried(const PlannedTensor& tensor, const Sink& sink) {
  std::vector<std::byte> block;
  for (uint64_t begin = 0; begin < tensor.spec.bytes(); begin += block.size()) {
    block.resize(std::min(kBlock, tensor.spec.bytes() - begin));
    tensor.carried(begin, block);
    sink(tensor.offset + begin, block);
  }
}

// Passes to `sink` the bytes of `tensor` that `part` owns, converted to the file's dtype. Rank 0
// owns all carried tensors.
void for_bytes(const PlannedTensor& tensor, const StatePart& part, HostValues& host,
               const Sink& sink) {
  if (tensor.carried) {
    if (part.rank == 0) for_carried(tensor, sink);
    return;
  }
  const ParamSlot& slot = *tensor.place.slot;
  const UnitState& state = part.states[tensor.place.unit];
  const ElementRange whole{slot.offset, slot.offset + slot.numel()};
  const auto width = static_cast<uint64_t>(dtype_bits(tensor.spec.dtype)) / 8;
  for_pieces(whole.intersection({state.begin, state.end}), [&](const ElementRange& piece) {
    const uint64_t offset =
        tensor.offset + static_cast<uint64_t>(piece.begin - slot.offset) * width;
    const std::span<const float> values = host.master(state, piece);
    if (tensor.spec.dtype == DType::kF32) return sink(offset, std::as_bytes(values));
    try {
      sink(offset, write_floats(tensor.spec.dtype, values));
    } catch (const std::invalid_argument& error) {
      throw_invalid("saving ", slot.name, ": ", error.what());
    }
  });
}

bool touches(const PlannedFile& file, const StatePart& part) {
  return std::any_of(file.tensors.begin(), file.tensors.end(), [&](const PlannedTensor& tensor) {
    if (tensor.carried) return false;
    const ParamSlot& slot = *tensor.place.slot;
    const UnitState& state = part.states[tensor.place.unit];
    return ElementRange{slot.offset, slot.offset + slot.numel()}
               .intersection({state.begin, state.end})
               .size() > 0;
  });
}

}  // namespace

std::vector<RangeDigest> write_model_ranges(FileSystem& file_system, const std::string& directory,
                                            const ModelFilePlan& plan, const StatePart& part) {
  std::vector<RangeDigest> ranges;
  HostValues host;
  const bool first = part.rank == 0;
  const auto keep = [&](ChecksummedRanges& file) {
    for (auto& range : file.finish()) ranges.push_back(std::move(range));
  };
  for (const auto& file : plan.files) {
    if (!first && !touches(file, part)) continue;
    ChecksummedRanges output(file_system, join_path(directory, file.name));
    if (first) output.write_at(0, std::as_bytes(std::span(file.prefix)));
    for (const auto& tensor : file.tensors) {
      for_bytes(tensor, part, host, [&](uint64_t offset, std::span<const std::byte> bytes) {
        output.write_at(offset, bytes);
      });
    }
    keep(output);
  }
  if (first && !plan.index.empty()) {
    ChecksummedRanges output(file_system, join_path(directory, kWeightsIndex));
    output.write_at(0, std::as_bytes(std::span(plan.index)));
    keep(output);
  }
  return ranges;
}

void check_header(const SafetensorsReader& reader, const PlannedFile& file) {
  bool same = reader.tensors().size() == file.tensors.size();
  for (const auto& tensor : file.tensors) {
    const TensorEntry* found = reader.find(tensor.spec.name);
    same = same && found != nullptr && found->dtype == tensor.spec.dtype &&
           found->shape == tensor.spec.shape;
  }
  if (!same) throw_runtime(reader.path(), ": reads back with other tensors than were written");
}

void check_model_ranges(const std::string& directory, const ModelFilePlan& plan,
                        const StatePart& part) {
  HostValues host;
  std::vector<std::byte> stored;
  for (const auto& file : plan.files) {
    if (part.rank != 0 && !touches(file, part)) continue;
    const std::string path = join_path(directory, file.name);
    check_header(SafetensorsReader(path), file);
    const FileBytes written(path);
    for (const auto& tensor : file.tensors) {
      for_bytes(tensor, part, host, [&](uint64_t offset, std::span<const std::byte> bytes) {
        stored.resize(bytes.size());
        written.read_at(offset, stored);
        if (!std::ranges::equal(stored, bytes)) {
          throw_runtime(path, ": ", tensor.spec.name,
                        " reads back differently from the weights in memory");
        }
      });
    }
  }
}

}  // namespace fastsft
