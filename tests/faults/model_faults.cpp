// Fails every single operation of replacing a model in a directory that holds other things, too,
// and looks at what a loader would find then, and after recovery (docs/spec/reliability.md, rows R1
// and R2). Usage: run_trials.

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "faults/fault_trial.h"
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
  bool ours = true;  // with the arguments that mark a model of ours

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
  if (model.ours)
    small("training_args.json",
          concat("{\"learning_rate\": \"", model.generation, "\", \"output_dir\": \"\"}"));
  if (model.shards > 1) small("model.safetensors.index.json", model.generation);
  for (const auto& file : join_ranges(ranges)) manifest.files.push_back(file);
  const std::string name = file_set_name();
  directory.commit(name, manifest);
  install_file_set(file_system, output, name);
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

// Whether every file of a model is in the directory or in one of those that it was put aside to.
bool is_kept(const std::string& output, const Model& model) {
  std::string text;
  for (int rank = 0; rank < 2; ++rank) text += model.generation + std::string(100, 'x');
  size_t found = 0;
  for (const auto& entry : fs::recursive_directory_iterator(output)) {
    const std::string name = entry.path().filename().string();
    const auto names = model.weights();
    const bool weights = std::find(names.begin(), names.end(), name) != names.end();
    found += weights && read_text(entry.path().string()) == text;
    found += name == "config.json" && read_text(entry.path().string()) == model.config;
  }
  return found == model.weights().size() + 1;
}

std::vector<std::string> judge(const Scenario& scenario, const std::string& output) {
  std::vector<std::string> problems;
  if (found(output, scenario) == "a mixture") problems.push_back("a loader finds a mixture");
  finish_file_sets(sound_file_system(), output);
  remove_leftovers(sound_file_system(), output);
  const std::string after = found(output, scenario);
  if (after != "old" && after != "new") problems.push_back("after recovery: " + after);
  for (const auto& problem : leftovers(output)) problems.push_back(problem);
  if (read_text(join_path(output, "notes.txt")) != "mine") problems.push_back("a foreign file");
  if (!scenario.before.ours && after == "new" && !is_kept(output, scenario.before)) {
    problems.push_back("the model of another program is lost");
  }
  try {
    save(sound_file_system(), output, scenario.after, scenario.ranks);
    if (found(output, scenario) != "new") problems.push_back("the next save is not found");
  } catch (const std::exception& error) {
    problems.push_back(concat("the next save failed: ", error.what()));
  }
  return problems;
}

std::vector<Scenario> scenarios() {
  return {
      {"one file by one", {"old", 1}, {"new", 1}},
      {"one file by one of another configuration", {"old", 1}, {"new", 1, "other"}},
      {"two files by two", {"old", 2}, {"new", 2}},
      {"two files by two, 4 ranks", {"old", 2}, {"new", 2}, 4},
      {"three files by one", {"old", 3}, {"new", 1}},
      {"one file by two", {"old", 1}, {"new", 2, "other"}},
      {"one file of another program by one", {"old", 1, "config", false}, {"new", 1, "other"}},
      {"two files of another program by one", {"old", 2, "config", false}, {"new", 1, "other"}}};
}

void prepare(const Scenario& scenario, const std::string& output) {
  save(sound_file_system(), output, scenario.before, 2);
  write_file(sound_file_system(), join_path(output, "notes.txt"), "mine");
}

std::vector<Trial> trials(bool syncs) {
  std::vector<Trial> all;
  for (const Scenario& scenario : scenarios()) {
    all.push_back({scenario.name,
                   [scenario](const std::string& output) { prepare(scenario, output); },
                   [scenario](FileSystem& file_system, const std::string& output) {
                     save(file_system, output, scenario.after, scenario.ranks);
                   },
                   [scenario](const std::string& output) { return judge(scenario, output); },
                   {.syncs = syncs}});
  }
  return all;
}

}  // namespace
}  // namespace fastsft::faults

int main(int count, char** arguments) {
  return fastsft::faults::run_trials(count, arguments, fastsft::faults::trials);
}
