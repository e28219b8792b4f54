#include "faults/fault_trial.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "core/error.h"
#include "faults/unsynced_file_system.h"

namespace fastsft::faults {
namespace {

namespace fs = std::filesystem;

// One trial below `root`, as often as it is asked for.
class Stage {
 public:
  Stage(const std::string& root, const Trial& trial)
      : root_(root),
        output_(join_path(root, "output")),
        graveyard_(join_path(root, "graveyard")),
        trial_(trial) {}

  int64_t count_operations() {
    fresh();
    FaultFileSystem counting(graveyard_, Fault::kNone, 0, trial_.abilities);
    trial_.act(counting, output_);
    return counting.operations();
  }

  std::vector<std::string> run(Fault fault, int64_t at, uint64_t seed) {
    fresh();
    FaultFileSystem failing(graveyard_, fault, at, trial_.abilities);
    try {
      trial_.act(failing, output_);
    } catch (const Crash&) {
      std::mt19937_64 random(seed);
      failing.lose_unsynced(random);
    } catch (const std::runtime_error&) {
      // The save failed and says so.
    }
    return trial_.judge(output_);
  }

 private:
  void fresh() {
    fs::remove_all(root_);
    fs::create_directories(output_);
    fs::create_directories(graveyard_);
    trial_.prepare(output_);
  }

  std::string root_, output_, graveyard_;
  const Trial& trial_;
};

// How many outcomes are bad.
int64_t try_every_fault(const std::string& root, const Trial& trial, int damages) {
  Stage stage(root, trial);
  const int64_t operations = stage.count_operations();
  int64_t points = 0, bad = 0;
  const auto attempt = [&](Fault fault, int64_t at, uint64_t seed) {
    ++points;
    for (const auto& problem : stage.run(fault, at, seed)) {
      ++bad;
      std::printf("BAD %s, fault %d at %lld, seed %llu: %s\n", trial.name.c_str(),
                  static_cast<int>(fault), static_cast<long long>(at),
                  static_cast<unsigned long long>(seed), problem.c_str());
    }
  };
  for (int64_t at = 0; at <= operations; ++at) {
    for (int damage = 0; damage < damages; ++damage) {
      attempt(Fault::kCrash, at, static_cast<uint64_t>(at * 1000 + damage));
    }
    attempt(Fault::kOnce, at, 0);
    attempt(Fault::kForever, at, 0);
  }
  std::printf("%s: %lld operations, %lld points, %lld bad\n", trial.name.c_str(),
              static_cast<long long>(operations), static_cast<long long>(points),
              static_cast<long long>(bad));
  return bad;
}

}  // namespace

FileSystem& sound_file_system() {
  static UnsyncedFileSystem file_system;
  return file_system;
}

std::string read_text(const std::string& path) {
  std::string text(fs::file_size(path), '\0');
  std::FILE* file = std::fopen(path.c_str(), "rb");
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

std::vector<std::string> leftovers(const std::string& output) {
  std::vector<std::string> problems;
  for (const auto& entry : fs::directory_iterator(output)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(".fastsft-")) problems.push_back("left over: " + name);
  }
  return problems;
}

int run_trials(int count, char** arguments,
               const std::function<std::vector<Trial>(bool syncs)>& trials) {
  const bool no_sync = count == 4 && std::string(arguments[3]) == "no-sync";
  if (count != 3 && !no_sync) {
    std::fprintf(stderr, "usage: %s DIRECTORY DAMAGES [no-sync]\n", arguments[0]);
    return 2;
  }
  int64_t bad = 0;
  for (const Trial& trial : trials(!no_sync)) {
    bad += try_every_fault(arguments[1], trial, std::atoi(arguments[2]));
  }
  fs::remove_all(arguments[1]);
  return bad == 0 ? 0 : 1;
}

}  // namespace fastsft::faults
