#include "checkpoint/state_file.h"

#include <algorithm>
#include <cstdio>
#include <regex>
#include <set>
#include <span>

#include "checkpoint/host_values.h"
#include "checkpoint/local_range.h"
#include "core/error.h"
#include "core/json.h"
#include "data/device_event.h"
#include "shard/unit_state.h"
#include "storage/file_system.h"

namespace fastsft {
namespace {

constexpr int kVersion = 1;
constexpr const char* kMetadataKey = "fastsft";

// Returns how many ranks wrote the optimizer file `name`; 0 for other files.
int world_size_of(const std::string& name) {
  static const std::regex pattern("optimizer-rank-(\\d{5})-of-(\\d{5})\\.safetensors");
  std::smatch match;
  return std::regex_match(name, match, pattern) ? std::stoi(match[2]) : 0;
}

}  // namespace

std::string state_file_name(int rank, int world_size) {
  char text[64];
  std::snprintf(text, sizeof text, "optimizer-rank-%05d-of-%05d.safetensors", rank, world_size);
  return text;
}

std::string layout_json(const StateFileLayout& layout) {
  Json units = Json::array();
  for (const auto& unit : layout.units) {
    units.push_back({{"name", unit.name},
                     {"hash", unit.hash},
                     {"begin", unit.range.begin},
                     {"end", unit.range.end}});
  }
  const Json json = {{"format_version", kVersion},
                     {"rank", layout.rank},
                     {"world_size", layout.world_size},
                     {"units", units}};
  return json.dump();
}

StateFileLayout read_layout(const SafetensorsReader& reader) {
  const std::string& where = reader.path();
  const auto text = reader.metadata().find(kMetadataKey);
  require(text != reader.metadata().end(), where,
          ": not an optimizer file of fastsft: its metadata lacks \"", kMetadataKey, "\"");
  try {
    const Json json = parse_json(text->second, where);
    const int version = json.at("format_version").get<int>();
    require(version == kVersion, where, ": format version ", version,
            "; this fastsft reads version ", kVersion);
    StateFileLayout layout{json.at("rank").get<int>(), json.at("world_size").get<int>(), {}};
    for (const auto& unit : json.at("units")) {
      const ElementRange range{unit.at("begin").get<int64_t>(), unit.at("end").get<int64_t>()};
      require(range.begin >= 0 && range.end >= range.begin, where, ": a range of elements from ",
              range.begin, " to ", range.end);
      layout.units.push_back(
          {unit.at("name").get<std::string>(), unit.at("hash").get<std::string>(), range});
    }
    return layout;
  } catch (const Json::exception& error) {
    throw_invalid(where, ": damaged metadata: ", error.what());
  }
}

std::vector<std::string> find_state_files(const std::string& directory) {
  std::set<int> sizes;
  std::set<std::string> names;
  for (const auto& entry : posix_file_system().list(directory)) {
    if (world_size_of(entry.name) == 0) continue;
    sizes.insert(world_size_of(entry.name));
    names.insert(entry.name);
  }
  require(sizes.size() == 1, directory, ": expected the optimizer files of one save, found ",
          sizes.empty() ? "none" : "those of several numbers of ranks",
          "; optimizer.pt of other programs is a pickle and is not read");
  std::vector<std::string> paths;
  for (int rank = 0; rank < *sizes.begin(); ++rank) {
    const std::string name = state_file_name(rank, *sizes.begin());
    require(names.contains(name), directory, ": ", name, " is missing");
    paths.push_back(join_path(directory, name));
  }
  return paths;
}

namespace {

// Cuts a range into `count` nearly equal parts at multiples of kAlignment, and returns part
// `index`.
ElementRange part_of(const ElementRange& range, int64_t index, int64_t count) {
  const int64_t step = (range.size() + count * kAlignment - 1) / (count * kAlignment) * kAlignment;
  const int64_t begin = std::min(range.begin + index * step, range.end);
  return {begin, std::min(begin + step, range.end)};
}

UnitState narrowed(const UnitState& state, const ElementRange& range) {
  const auto cut = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.narrow(0, range.begin - state.begin, range.size()) : tensor;
  };
  UnitState part{.unit = state.unit,
                 .begin = range.begin,
                 .end = range.end,
                 .master = cut(state.master),
                 .high = cut(state.high),
                 .specs = state.specs};
  for (size_t i = 0; i < state.values.size(); ++i) {
    const StateSpec& spec = state.kept()[i];
    const int64_t first = spec.by_ranges() ? spec.offset(state.range(), range) : 0;
    part.values.push_back(state.values[i].narrow(0, first, spec.stored(range)));
  }
  return part;
}

}  // namespace

StatePart part_to_write(Strategy& strategy, Communicator& all) {
  const Communicator& shards = strategy.shards();
  const std::span<const UnitState> units = strategy.states();
  const bool replicated =
      shards.world_size() > 1 && std::all_of(units.begin(), units.end(), owns_whole);
  // Ranks that hold the same elements write an equal share each.
  const int64_t among = replicated ? shards.world_size() : 1;
  const int64_t index = strategy.replica_index() * among + (replicated ? shards.rank() : 0);
  StatePart part{all.rank(), all.world_size(), {}};
  for (const auto& state : units) {
    ElementRange owned = state.range().intersection({0, state.unit->numel()});  // without padding
    if (owned.size() == 0) owned = {state.begin, state.begin};
    const ElementRange range = part_of(owned, index, strategy.num_replicas() * among);
    part.states.push_back(narrowed(state, range));
  }
  return part;
}

namespace {

void make_room(at::Tensor& to, const at::Tensor& from, at::ScalarType dtype) {
  const bool fits = to.defined() && to.numel() == from.numel() && to.scalar_type() == dtype;
  if (!fits) to = host_buffer(from.numel(), from.device(), dtype);
}

void copy_values(at::Tensor& to, const at::Tensor& from) {
  make_room(to, from, from.scalar_type());
  to.copy_(from, /*non_blocking=*/true);
}

// Copies the master weights piece by piece: a split master is joined to float32 on the device,
// whose memory may not hold a whole unit in float32.
void copy_master(at::Tensor& to, const UnitState& from) {
  constexpr int64_t kPiece = int64_t{1} << 24;
  make_room(to, from.master, at::kFloat);
  for (int64_t begin = from.begin; begin < from.end; begin += kPiece) {
    const ElementRange range{begin, std::min(begin + kPiece, from.end)};
    to.narrow(0, begin - from.begin, range.size())
        .copy_(read_master(from, range), /*non_blocking=*/true);
  }
}

// Returns the device of the first tensor outside host memory; the CPU if there is none.
at::Device device_of(const StatePart& part) {
  for (const auto& state : part.states) {
    std::vector<at::Tensor> tensors = state.values;
    tensors.insert(tensors.end(), {state.master, state.high});
    for (const auto& tensor : tensors) {
      if (tensor.defined() && !tensor.is_cpu()) return tensor.device();
    }
  }
  return at::kCPU;
}

}  // namespace

void StateStaging::copy(const StatePart& live) {
  part_.rank = live.rank;
  part_.world_size = live.world_size;
  part_.states.resize(live.states.size());
  for (size_t i = 0; i < live.states.size(); ++i) {
    const UnitState& from = live.states[i];
    UnitState& to = part_.states[i];
    to.unit = from.unit;
    to.begin = from.begin;
    to.end = from.end;
    copy_master(to.master, from);
    to.specs = from.specs;
    to.values.resize(from.values.size());
    for (size_t k = 0; k < from.values.size(); ++k) copy_values(to.values[k], from.values[k]);
  }
  DeviceEvent copied(device_of(live));
  copied.record();
  copied.synchronize("staging of a checkpoint");
}

int64_t staging_bytes(const StatePart& live) {
  const at::Device device = device_of(live);
  int64_t sum = 0;
  for (const auto& state : live.states) {
    sum += host_buffer_bytes(4 * state.master.numel(), device);
    for (const auto& value : state.values) {
      sum += host_buffer_bytes(static_cast<int64_t>(value.nbytes()), device);
    }
  }
  return sum;
}

}  // namespace fastsft
