#pragma once

#include <string>
#include <vector>

#include "storage/file_system.h"
#include "storage/manifest.h"

namespace fastsft {

// Replaces a set of files of a directory that holds other things, too: the files of a model.
// The new ones are in an AtomicDirectory inside of it, which is committed to a name of our own with
// a manifest: from then on the set counts as written, and a crash while its files take their names
// is finished by `finish_file_sets`. Weights that loaders would find are taken away before and come
// last, so that nothing ever loads a mixture; a single file under the same config.json is replaced
// in one step.

// Whether fastsft wrote the model of `directory`: it holds our training_args.json, and not the file
// that transformers writes in its place.
bool is_our_model(const std::string& directory);

// The name to commit the directory to.
std::string file_set_name();

// Gives the files of a committed set their names in `parent` and removes weight files that are not
// among them. Durable on return. What has these names and fastsft did not write (`is_our_model`
// says no) is kept in a folder
// `previous-<UTC time>-files`, and so is what is no file; a link is replaced, its target never.
// Returns that folder, "" when nothing was kept.
std::string install_file_set(FileSystem& file_system, const std::string& parent,
                             const std::string& name);

// Why files of a committed set cannot take their names in `parent`, or weights of the model before
// not go: protected (protection.h). "" when nothing is in the way.
std::string file_set_obstacle(FileSystem& file_system, const std::string& parent,
                              const std::string& name);
// The model of a committed set becomes `<parent>/saved-<UTC time>-model`. Durable on return;
// returns the new path.
std::string keep_file_set(FileSystem& file_system, const std::string& parent,
                          const std::string& name);

// A committed set whose files are no longer all there as its manifest says.
struct BrokenFileSet {
  std::string name;
  std::string problem;
  bool removed = false;
};

// Installs the sets that a crash left in `parent`, or keeps them as `keep_file_set` where that is
// not possible; returns those, and those that do not verify. The latter are left alone, but where
// `remove_useless` (only while no other run writes there) those in which nothing waits: they are
// empty, or hold no more than fastsft's manifest and damaged files of its list.
std::vector<BrokenFileSet> finish_file_sets(FileSystem& file_system, const std::string& parent,
                                            bool remove_useless = false);

}  // namespace fastsft
