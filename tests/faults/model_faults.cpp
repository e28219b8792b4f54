// Fails every single operation of replacing a model in a directory that holds other things, too,
// and looks at what a loader would find then, and after recovery (reliability.md, R1 and R2).
//   model_faults DIRECTORY DAMAGES [no-sync]
// prints a line a scenario; the exit status is 1 when there is a bad outcome.

#include <cstdio>
#include <filesystem>
#include <set>

#include "core/error.h"
#include "faults/fault_file_system.h"
#include "faults/unsynced_file_system.h"
#include "storage/atomic_directory.h"
#include "storage/file_ranges.h"
#include "storage/file_set.h"

namespace fastsft::faults {
namespace {

namespace fs = std::filesystem;

// Files of a model; the index is the list of its weight files.
struct Model {
  std::string generation;
  int shards = 1;
  std::string config = "config";

  std::vector<std::string> weights() const {
    if (shards == 1) return {"model.safetensors"};
    std::vector<std::string> names;
    for (int i = 1; i <= shards; ++i) {
      names.push_back(concat("model-0000", i, "-of-0000", shards, ".safetensors"));
    }
    return names;
  }
};

struct Scenario {
  std::string name;
  Model before, after;
  int ranks = 2;
};

void save(FileSystem& file_system, const std::string& output, const Model& model, int ranks) {
  AtomicDirectory directory(file_system, output, "model");
  Manifest manifest;
  std::vector<RangeDigest> ranges;
  const auto part = [&](const std::string& name, uint64_t offset, const std::string& text) {
    ChecksummedRanges file(file_system, join_path(directory.path(), name));
    file.write_at(offset, std::as_bytes(std::span(text)));
    for (auto& range : file.finish()) ranges.push_back(range);
  };
  for (int rank = 0; rank < ranks; ++rank) {  // each writes its bytes of every file
    for (const auto& name : model.weights()) {
      const std::string text = model.generation + std::string(100, 'x');
      part(name, static_cast<uint64_t>(rank) * text.size(), text);
    }
  }
  const auto small = [&](const std::string& name, const std::string& text) {
    manifest.files.push_back(write_file(file_system, join_path(directory.path(), name), text));
  };
  small("config.json", model.config);
  if (model.shards > 1) small("model.safetensors.index.json", model.generation);
  for (const auto& file : join_ranges(ranges)) manifest.files.push_back(file);
  const std::string name = file_set_name();
  directory.commit(name, manifest);
  install_file_set(file_system, output, name);
}

std::string read_text(const std::string& path) {
  std::string text(fs::file_size(path), '\0');
  std::FILE* file = std::fopen(path.c_str(), "rb");
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

bool holds(const std::string& output, const Model& model, int ranks) {
  std::string text;
  for (int rank = 0; rank < ranks; ++rank) text += model.generation + std::string(100, 'x');
  for (const auto& name : model.weights()) {
    const std::string path = join_path(output, name);
    if (!fs::exists(path) || read_text(path) != text) return false;
  }
  const std::string index = join_path(output, "model.safetensors.index.json");
  if (fs::exists(index) != (model.shards > 1)) return false;
  if (model.shards > 1 && read_text(index) != model.generation) return false;
  const std::string config = join_path(output, "config.json");
  return fs::exists(config) && read_text(config) == model.config;
}

// What a loader finds: "old", "new", "nothing", or "a mixture".
std::string found(const std::string& output, const Scenario& scenario) {
  if (holds(output, scenario.before, 2)) return "old";
  if (holds(output, scenario.after, scenario.ranks)) return "new";
  const bool entry = fs::exists(join_path(output, "model.safetensors")) ||
                     fs::exists(join_path(output, "model.safetensors.index.json"));
  return entry ? "a mixture" : "nothing";
}

FileSystem& sound_file_system() {
  static UnsyncedFileSystem file_system;
  return file_system;
}

std::vector<std::string> judge(const Scenario& scenario, const std::string& output) {
  std::vector<std::string> problems;
  if (found(output, scenario) == "a mixture") problems.push_back("a loader finds a mixture");
  finish_file_sets(sound_file_system(), output);
  remove_leftovers(sound_file_system(), output);
  const std::string after = found(output, scenario);
  if (after != "old" && after != "new") problems.push_back("after recovery: " + after);
  for (const auto& entry : fs::directory_iterator(output)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(".fastsft-")) problems.push_back("left over: " + name);
  }
  if (read_text(join_path(output, "notes.txt")) != "mine") problems.push_back("a foreign file");
  try {
    save(sound_file_system(), output, scenario.after, scenario.ranks);
    if (found(output, scenario) != "new") problems.push_back("the next save is not found");
  } catch (const std::exception& error) {
    problems.push_back(concat("the next save failed: ", error.what()));
  }
  return problems;
}

class Trial {
 public:
  Trial(std::string root, const Scenario& scenario, bool syncs)
      : root_(std::move(root)), scenario_(scenario), syncs_(syncs) {}

  int64_t count_operations() {
    fresh();
    FaultFileSystem counting(graveyard_, Fault::kNone, 0, {.exchanges = true, .syncs = syncs_});
    save(counting, output_, scenario_.after, scenario_.ranks);
    return counting.operations();
  }

  std::vector<std::string> run(Fault fault, int64_t at, uint64_t seed) {
    fresh();
    FaultFileSystem failing(graveyard_, fault, at, {.exchanges = true, .syncs = syncs_});
    try {
      save(failing, output_, scenario_.after, scenario_.ranks);
    } catch (const Crash&) {
      std::mt19937_64 random(seed);
      failing.lose_unsynced(random);
    } catch (const std::runtime_error&) {
      // The save failed and says so.
    }
    return judge(scenario_, output_);
  }

 private:
  void fresh() {
    fs::remove_all(root_);
    output_ = join_path(root_, "output");
    graveyard_ = join_path(root_, "graveyard");
    fs::create_directories(output_);
    fs::create_directories(graveyard_);
    save(sound_file_system(), output_, scenario_.before, 2);
    write_file(sound_file_system(), join_path(output_, "notes.txt"), "mine");
  }

  std::string root_, output_, graveyard_;
  const Scenario& scenario_;
  bool syncs_;
};

std::vector<Scenario> scenarios() {
  return {{"one file by one", {"old", 1}, {"new", 1}},
          {"one file by one of another configuration", {"old", 1}, {"new", 1, "other"}},
          {"two files by two", {"old", 2}, {"new", 2}},
          {"two files by two, 4 ranks", {"old", 2}, {"new", 2}, 4},
          {"three files by one", {"old", 3}, {"new", 1}},
          {"one file by two", {"old", 1}, {"new", 2, "other"}}};
}

int try_all(const std::string& root, int damages, bool syncs) {
  int64_t all_bad = 0;
  for (const Scenario& scenario : scenarios()) {
    Trial trial(root, scenario, syncs);
    const int64_t operations = trial.count_operations();
    int64_t points = 0, bad = 0;
    const auto attempt = [&](Fault fault, int64_t at, uint64_t seed) {
      ++points;
      for (const auto& problem : trial.run(fault, at, seed)) {
        ++bad;
        std::printf("BAD %s, fault %d at %lld: %s\n", scenario.name.c_str(),
                    static_cast<int>(fault), static_cast<long long>(at), problem.c_str());
      }
    };
    for (int64_t at = 0; at <= operations; ++at) {
      for (int damage = 0; damage < damages; ++damage) {
        attempt(Fault::kCrash, at, static_cast<uint64_t>(at * 1000 + damage));
      }
      attempt(Fault::kOnce, at, 0);
      attempt(Fault::kForever, at, 0);
    }
    std::printf("%s: %lld operations, %lld points, %lld bad\n", scenario.name.c_str(),
                static_cast<long long>(operations), static_cast<long long>(points),
                static_cast<long long>(bad));
    all_bad += bad;
  }
  fs::remove_all(root);
  return all_bad == 0 ? 0 : 1;
}

}  // namespace
}  // namespace fastsft::faults

int main(int count, char** arguments) {
  const bool no_sync = count == 4 && std::string(arguments[3]) == "no-sync";
  if (count != 3 && !no_sync) {
    std::fprintf(stderr, "usage: model_faults DIRECTORY DAMAGES [no-sync]\n");
    return 2;
  }
  return fastsft::faults::try_all(arguments[1], std::atoi(arguments[2]), !no_sync);
}
