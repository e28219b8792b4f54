#include <algorithm>
#include <map>
#include <memory>

#include "checkpoint/agreement.h"
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
using Pieces = std::map<std::string, std::vector<Piece>>;  // by unit
using OpenStateFiles = std::vector<std::unique_ptr<SafetensorsReader>>;

Pieces collect_pieces(const OpenStateFiles& readers) {
  Pieces pieces;
  for (const auto& reader : readers) {
    for (auto& unit : read_layout(*reader).units) {
      const std::string name = unit.name;
      pieces[name].push_back({reader.get(), std::move(unit)});
    }
  }
  return pieces;
}

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

const TensorEntry& entry_of(const Piece& piece, const char* suffix, bool moment) {
  const std::string name = piece.unit.name + suffix;
  const TensorEntry* entry = piece.reader->find(name);
  const bool fits = entry != nullptr &&
                    (entry->dtype == DType::kF32 || (moment && entry->dtype == DType::kBF16)) &&
                    static_cast<int64_t>(entry->numel()) == piece.unit.range.size();
  require(fits, piece.reader->path(), ": expected tensor \"", name, "\" of ",
          piece.unit.range.size(), moment ? " F32 or BF16 elements" : " F32 elements");
  return *entry;
}

void load_piece(UnitState& state, const Piece& piece) {
  const auto data = [&](const TensorEntry& entry) { return piece.reader->bytes(entry).data(); };
  const ElementRange& range = piece.unit.range;
  const TensorEntry& master = entry_of(piece, ".master", false);
  store_owned_master(state, range, master.dtype, data(master));
  for (const auto& [suffix, target] :
       {std::pair(".exp_avg", &state.exp_avg), std::pair(".exp_avg_sq", &state.exp_avg_sq)}) {
    const TensorEntry& entry = entry_of(piece, suffix, true);
    store_owned(state, *target, range, entry.dtype, data(entry));
  }
}

void read_state(std::span<UnitState> units, const std::string& directory) {
  OpenStateFiles readers;
  for (const auto& path : find_state_files(directory)) {
    readers.push_back(std::make_unique<SafetensorsReader>(path));
  }
  const Pieces pieces = collect_pieces(readers);
  check_same_layout(pieces, units, directory);
  for (auto& state : units) {
    const auto& parts = pieces.at(state.unit->name());
    check_covered(parts, *state.unit, directory);
    for (const auto& piece : parts) load_piece(state, piece);
  }
}

}  // namespace

void load_training_state(Strategy& strategy, Communicator& all, const std::string& directory) {
  Agreement agreement;
  agreement.attempt([&] { read_state(strategy.states(), directory); });
  agreement.settle(all, strategy.device(), "loading the training state " + directory);
}

}  // namespace fastsft
