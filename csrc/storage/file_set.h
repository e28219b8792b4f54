#pragma once

#include <string>
#include <vector>

#include "storage/file_system.h"
#include "storage/manifest.h"

namespace fastsft {

// Replacement of a model's files in a directory that also holds other files. The new files are
// first written to an AtomicDirectory inside that directory, which is committed under the name
// `file_set_name()` with a manifest. From then on the set counts as written: if a crash interrupts
// the renaming of its files, `finish_file_sets` completes it. Old weights that loaders would find
// are removed first, and new weights are renamed last, so that a loader never reads a mixture of
// both. A single weight file next to an unchanged config.json is replaced by one rename.

// Returns true if fastsft wrote the model in `directory`: the directory holds fastsft's
// training_args.json and no training_args.bin, the file that transformers writes instead.
bool is_our_model(const std::string& directory);

// Returns a new name under which to commit a file set.
std::string file_set_name();

// Renames the files of a committed set to their names in `parent` and removes weight files that are
// not in the set. Durable on return. Links are replaced; their targets are never touched.
// Directories with these names, and files of a model that fastsft did not write (`is_our_model` is
// false), move to a folder `previous-<UTC time>-files`. Returns that folder, or "" if nothing was
// moved.
std::string install_file_set(FileSystem& file_system, const std::string& parent,
                             const std::string& name);

// Returns why the files of a committed set cannot be renamed into `parent`, or why old weights
// there cannot be removed (protection.h). "" if nothing prevents it.
std::string file_set_obstacle(FileSystem& file_system, const std::string& parent,
                              const std::string& name);
// Renames a committed set to `<parent>/saved-<UTC time>-model`. Returns the new path. Durable on
// return.
std::string keep_file_set(FileSystem& file_system, const std::string& parent,
                          const std::string& name);

// A committed set that was not installed, and the reason.
struct BrokenFileSet {
  std::string name;
  std::string problem;
  bool removed = false;
};

// Installs the sets that a crash left in `parent`. If protected files prevent that, renames the set
// as `keep_file_set` does. Returns the sets that were not installed, including damaged sets.
// Damaged sets are left alone, unless `remove_useless` is true and the set holds nothing useful: it
// is empty, or holds no more than its manifest and damaged files. Pass `remove_useless` only while
// no other run writes to `parent`.
std::vector<BrokenFileSet> finish_file_sets(FileSystem& file_system, const std::string& parent,
                                            bool remove_useless = false);

}  // namespace fastsft
