// Fails every single operation of saving, replacing, rotating, deleting and cleaning up
// checkpoints, and looks at what is left (docs/spec/reliability.md, rows R1 and R2).
// Usage: run_trials.

#include <filesystem>
#include <set>

#include "core/error.h"
#include "faults/fault_trial.h"
#include "storage/atomic_directory.h"
#include "storage/checksummed_file.h"
#include "storage/file_ranges.h"
#include "storage/rotation.h"
#include "storage/staged_files.h"

namespace fastsft::faults {
namespace {

namespace fs = std::filesystem;

struct Scenario {
  std::string name;
  std::function<void(FileSystem&, const std::string&)> prepare;  // without faults
  std::function<void(FileSystem&, const std::string&)> run;
  // What the newest checkpoint that verifies may be afterwards: "<directory>:<generation>".
  std::set<std::string> allowed{};
  std::set<std::string> kept{};  // directories that must verify whatever happens
  int notes = 0;                 // files of another program that must be there, wherever
};

const std::string kNotes = "what another program wrote";

FileDigest write_in_two(FileSystem& file_system, const std::string& path, const std::string& text) {
  ChecksummedFile file(file_system, path);
  const std::string half = text.substr(0, text.size() / 2);
  file.write(half);
  file.write(text.substr(half.size()));
  return file.finish();
}

// What rank `rank` writes: its bytes of the model's file, and its own file.
void write_part(FileSystem& file_system, const std::string& path, int rank, int ranks,
                const std::string& text, Manifest& manifest, std::vector<RangeDigest>& ranges) {
  ChecksummedRanges model(file_system, join_path(path, "model.bin"));
  const size_t size = text.size() / static_cast<size_t>(ranks);
  const size_t begin = size * static_cast<size_t>(rank);
  const std::string part = text.substr(begin, rank + 1 == ranks ? std::string::npos : size);
  for (size_t at = 0; at < part.size(); at += 100) {
    model.write_at(begin + at, std::as_bytes(std::span(part).subspan(
                                   at, std::min<size_t>(100, part.size() - at))));
  }
  for (auto& range : model.finish()) ranges.push_back(range);
  const std::string name = concat("optimizer-", rank, ".bin");
  manifest.files.push_back(write_in_two(file_system, join_path(path, name), name + text));
}

// Every rank writes its part, whatever becomes of the others; one of them commits when none failed.
void save(FileSystem& file_system, const std::string& output, int step, int ranks,
          const std::string& generation) {
  AtomicDirectory directory(file_system, output, std::to_string(step));
  Manifest manifest{.step = step, .world_size = ranks, .layout_hash = "00", .files = {}};
  const std::string text = concat(generation, " ", step, " ", std::string(500, 'x'));
  std::vector<RangeDigest> ranges;
  std::exception_ptr failure;
  for (int rank = 0; rank < ranks; ++rank) {
    try {
      write_part(file_system, directory.path(), rank, ranks, text, manifest, ranges);
    } catch (const Crash&) {
      throw;
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
  for (const auto& file : join_ranges(ranges)) manifest.files.push_back(file);
  manifest.files.push_back(
      write_in_two(file_system, join_path(directory.path(), "generation"), generation));
  directory.commit(concat("checkpoint-", step), manifest);
}

bool verifies(const std::string& path) { return verify_directory(path).empty(); }

std::string newest(const std::string& output) {
  auto checkpoints = list_checkpoints(posix_file_system(), output);
  for (auto entry = checkpoints.rbegin(); entry != checkpoints.rend(); ++entry) {
    const std::string path = join_path(output, entry->name);
    if (verifies(path)) return entry->name + ":" + read_text(join_path(path, "generation"));
  }
  return "none";
}

int count_notes(const std::string& output) {
  int found = 0;
  for (const auto& entry : fs::recursive_directory_iterator(output)) {
    found += entry.is_regular_file() && read_text(entry.path().string()) == kNotes;
  }
  return found;
}

std::vector<std::string> judge(const Scenario& scenario, const std::string& output) {
  std::vector<std::string> problems;
  restore_replaced(sound_file_system(), output);
  const std::string found = newest(output);
  if (!scenario.allowed.contains(found)) problems.push_back("newest is " + found);
  for (const auto& name : scenario.kept) {
    if (!verifies(join_path(output, name))) problems.push_back(name + " is lost");
  }
  remove_leftovers(sound_file_system(), output);
  if (count_notes(output) != scenario.notes) problems.push_back("a foreign file is lost");
  if (newest(output) != found) problems.push_back("cleaning up changed the newest checkpoint");
  for (const auto& problem : leftovers(output)) problems.push_back(problem);
  try {  // and the next save works
    save(sound_file_system(), output, 99, 2, "next");
    if (newest(output) != "checkpoint-99:next") problems.push_back("the next save is not found");
  } catch (const std::exception& error) {
    problems.push_back(concat("the next save failed: ", error.what()));
  }
  return problems;
}

void save_10(FileSystem& file_system, const std::string& output) {
  save(file_system, output, 10, 2, "old");
}

void save_four(FileSystem& file_system, const std::string& output) {
  for (int step : {10, 20, 30, 40}) save(file_system, output, step, 2, "old");
  fs::resize_file(join_path(output, "checkpoint-20/model.bin"),
                  7);  // a torn one is never counted
}

void save_beside_foreign(FileSystem& file_system, const std::string& output) {
  save_10(file_system, output);
  fs::create_directory(join_path(output, "checkpoint-20"));
  write_file(file_system, join_path(output, "checkpoint-20/optimizer.pt"), kNotes);
}

// What a crash leaves: a half-written, a replaced and a half-deleted directory.
void leave_leftovers(FileSystem& file_system, const std::string& output) {
  save_four(file_system, output);
  const std::string hex = "0123456789abcdef";
  fs::rename(join_path(output, "checkpoint-10"), join_path(output, ".fastsft-trash-a-" + hex));
  fs::rename(join_path(output, "checkpoint-40"),
             join_path(output, ".fastsft-old-checkpoint-40-" + hex));
  fs::create_directory(join_path(output, ".fastsft-tmp-50-" + hex));
}

std::vector<Scenario> scenarios() {
  std::vector<Scenario> all;
  for (const int ranks : {2, 4}) {
    all.push_back({concat("save, ", ranks, " ranks"),
                   save_10,
                   [ranks](FileSystem& file_system, const std::string& output) {
                     save(file_system, output, 20, ranks, "new");
                     rotate_checkpoints(file_system, output, 1, {"checkpoint-20"});
                   },
                   {"checkpoint-10:old", "checkpoint-20:new"},
                   {}});
    all.push_back({concat("replace, ", ranks, " ranks"),
                   save_10,
                   [ranks](FileSystem& file_system, const std::string& output) {
                     save(file_system, output, 10, ranks, "new");
                   },
                   {"checkpoint-10:old", "checkpoint-10:new"},
                   {"checkpoint-10"}});
  }
  all.push_back({"replace what another program wrote",
                 save_beside_foreign,
                 [](FileSystem& file_system, const std::string& output) {
                   save(file_system, output, 20, 2, "new");
                 },
                 {"checkpoint-10:old", "checkpoint-20:new"},
                 {"checkpoint-10"},
                 1});
  all.push_back({"rotate one with files of others",
                 [](FileSystem& file_system, const std::string& output) {
                   save_four(file_system, output);
                   write_file(file_system, join_path(output, "checkpoint-30/notes"), kNotes);
                 },
                 [](FileSystem& file_system, const std::string& output) {
                   rotate_checkpoints(file_system, output, 1, {"checkpoint-10"});
                 },
                 {"checkpoint-40:old"},
                 {"checkpoint-10", "checkpoint-40"},
                 1});
  all.push_back({"rotate",
                 save_four,
                 [](FileSystem& file_system, const std::string& output) {
                   rotate_checkpoints(file_system, output, 1, {"checkpoint-10"});
                 },
                 {"checkpoint-40:old"},
                 {"checkpoint-10", "checkpoint-40"}});
  all.push_back({"delete",
                 save_four,
                 [](FileSystem& file_system, const std::string& output) {
                   delete_directory(file_system, join_path(output, "checkpoint-30"));
                 },
                 {"checkpoint-40:old"},
                 {"checkpoint-10", "checkpoint-40"}});
  all.push_back({"clean up on resume",
                 leave_leftovers,
                 [](FileSystem& file_system, const std::string& output) {
                   remove_leftovers(file_system, output);
                 },
                 {"checkpoint-40:old"},
                 {"checkpoint-30"}});
  return all;
}

std::vector<Trial> trials(bool syncs) {
  std::vector<Trial> all;
  for (const bool can_exchange : {true, false}) {
    for (const Scenario& scenario : scenarios()) {
      all.push_back(
          {scenario.name + (can_exchange ? "" : " (names cannot be exchanged)"),
           [scenario](const std::string& output) { scenario.prepare(sound_file_system(), output); },
           scenario.run,
           [scenario](const std::string& output) { return judge(scenario, output); },
           {.exchanges = can_exchange, .syncs = syncs}});
    }
  }
  return all;
}

}  // namespace
}  // namespace fastsft::faults

int main(int count, char** arguments) {
  return fastsft::faults::run_trials(count, arguments, fastsft::faults::trials);
}
