#pragma once

#include <functional>
#include <string>
#include <vector>

#include "faults/fault_file_system.h"

namespace fastsft::faults {

// A change of a directory, and what must be true of it afterwards whatever failed on the way.
struct Trial {
  std::string name;
  std::function<void(const std::string& output)> prepare;  // without faults
  std::function<void(FileSystem&, const std::string& output)> act;
  // Sentences about what is wrong after the machine or the operation failed; recovery included.
  std::function<std::vector<std::string>(const std::string& output)> judge;
  Abilities abilities;
};

// The real file system, which waits for no disk.
FileSystem& sound_file_system();

std::string read_text(const std::string& path);

// What a save that failed left below `output`, a sentence a name.
std::vector<std::string> leftovers(const std::string& output);

// Usage of the program: PROGRAM DIRECTORY DAMAGES [no-sync]. Fails every operation of every trial,
// once, for ever, and by a crash with DAMAGES ways to lose what was not synced; prints a line a
// trial: points tried, bad outcomes. The status is 1 when there is one. With `no-sync` fsync does
// nothing, and there must be bad outcomes.
int run_trials(int count, char** arguments,
               const std::function<std::vector<Trial>(bool syncs)>& trials);

}  // namespace fastsft::faults
