#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "checkpoint/all_or_none.h"
#include "checkpoint/local_range.h"
#include "checkpoint/state_file.h"
#include "checkpoint/training_state.h"
#include "core/error.h"

namespace fastsft {
namespace {

struct Piece {
  const SafetensorsReader* reader = nullptr;
  StoredUnit unit;
};
using Pieces = std::map<std::string, std::vector<Piece>>;  // by unit name

void check_same_layout(const Pieces& pieces, std::span<const UnitState> units,
                       const std::string& directory) {
  for (const auto& state : units) {
    const auto found = pieces.find(state.unit->name());
    require(found != pieces.end(), directory, ": no state for unit \"", state.unit->name(),
            "\"; it was saved from another model");
    for (const auto& piece : found->second) {
      require(piece.unit.hash == state.unit->hash(), piece.reader->path(), ": unit \"",
              state.unit->name(), "\" has layout ", piece.unit.hash, ", the model has ",
              state.unit->hash(), "; it was saved from a model of another shape");
    }
  }
  require(pieces.size() == units.size(), directory, ": holds ", pieces.size(),
          " units, the model has ", units.size(), "; it was saved from another model");
}

void check_covered(std::vector<Piece> pieces, const ParamUnit& unit, const std::string& directory) {
  std::sort(pieces.begin(), pieces.end(), [](const Piece& left, const Piece& right) {
    return left.unit.range.begin < right.unit.range.begin;
  });
  int64_t covered = 0;
  for (const auto& piece : pieces) {
    if (piece.unit.range.size() > 0 && piece.unit.range.begin <= covered) {
      covered = std::max(covered, piece.unit.range.end);
    }
  }
  require(covered >= unit.numel(), directory, ": unit \"", unit.name(), "\": elements from ",
          covered, " on are in no file");
}

const TensorEntry& entry_of(const Piece& piece, const std::string& what, int64_t count,
                            bool (*takes)(DType), const char* dtypes) {
  const std::string name = piece.unit.name + "." + what;
  const TensorEntry* entry = piece.reader->find(name);
  require(entry != nullptr && takes(entry->dtype) && static_cast<int64_t>(entry->numel()) == count,
          piece.reader->path(), ": expected tensor \"", name, "\" of ", count, " ", dtypes,
          " elements");
  return *entry;
}

const TensorEntry& master_of(const Piece& piece) {
  return entry_of(
      piece, "master", piece.unit.range.size(), [](DType dtype) { return dtype == DType::kF32; },
      "F32");
}

const TensorEntry& kept_of(const Piece& piece, const StateSpec& spec) {
  const int64_t count = spec.stored(piece.unit.range);
  if (stored_dtype(spec) == DType::kU8) {
    return entry_of(piece, spec.name, count, [](DType dtype) { return dtype == DType::kU8; }, "U8");
  }
  return entry_of(
      piece, spec.name, count,
      [](DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }, "F32 or BF16");
}

void check_same_optimizer(const Piece& piece, const UnitState& state) {
  std::set<std::string> expected, found;
  for (const auto& spec : state.kept()) expected.insert(spec.name);
  const std::string prefix = piece.unit.name + ".";
  for (const auto& entry : piece.reader->tensors()) {
    if (!entry.name.starts_with(prefix)) continue;
    const std::string name = entry.name.substr(prefix.size());
    // skips tensors of other units whose names begin alike
    if (name.find('.') == std::string::npos) found.insert(name);
  }
  found.erase("master");
  if (found == expected) return;
  std::string names;
  for (const auto& name : found) names += (names.empty() ? "" : ", ") + name;
  throw_invalid(piece.reader->path(), ": unit \"", piece.unit.name,
                "\": expected the state of the optimizer that the run has (",
                names_of(state.kept()), "), got that of another (", names.empty() ? "none" : names,
                "); resume with the --optim that the checkpoint was written with");
}

void load_piece(UnitState& state, const Piece& piece) {
  const auto data = [&](const TensorEntry& entry) { return piece.reader->bytes(entry).data(); };
  const ElementRange& range = piece.unit.range;
  const TensorEntry& master = master_of(piece);
  store_owned_master(state, range, master.dtype, data(master));
  for (size_t i = 0; i < state.values.size(); ++i) {
    const TensorEntry& entry = kept_of(piece, state.kept()[i]);
    store_values(state, i, range, entry.dtype, data(entry));
  }
}

void read_state(std::span<UnitState> units, const std::string& directory) {
  std::vector<std::unique_ptr<SafetensorsReader>> readers;
  for (const auto& path : find_state_files(directory)) {
    readers.push_back(std::make_unique<SafetensorsReader>(path));
  }
  Pieces pieces;
  for (const auto& reader : readers) {
    for (auto& unit : read_layout(*reader).units) {
      const std::string name = unit.name;
      pieces[name].push_back({reader.get(), std::move(unit)});
    }
  }
  check_same_layout(pieces, units, directory);
  for (auto& state : units) {
    const auto& parts = pieces.at(state.unit->name());
    check_covered(parts, *state.unit, directory);
    for (const auto& piece : parts) check_same_optimizer(piece, state);
    for (const auto& piece : parts) load_piece(state, piece);
  }
}

}  // namespace

void load_training_state(Strategy& strategy, Communicator& all, const std::string& directory) {
  AllOrNone attempt;
  attempt.run([&] { read_state(strategy.states(), directory); });
  attempt.finish(all, strategy.device(), "loading the training state " + directory);
}

}  // namespace fastsft
