#pragma once

#include <string>
#include <vector>

#include "storage/file_system.h"

namespace fastsft {

// What of a directory goes. Every removal of fastsft's goes through here, and none follows a link.

// The file in directories that are being written: all in them is ours.
inline constexpr const char* kOwnerMark = ".fastsft-owner";

// Whether fastsft wrote the directory `path`: it is no link and holds fastsft's manifest, whole.
bool holds_manifest(FileSystem& file_system, const std::string& path);
// Whether it is one that fastsft was writing or removing: also with the owner mark, or empty.
bool is_unfinished(FileSystem& file_system, const std::string& path);

// Removes the directory and everything in it; for those that fastsft made under a name of its own.
// The marks of ownership go last: a crash in between leaves a directory that is known as ours.
void remove_whole(FileSystem& file_system, const std::string& path);

// Removes the files that the manifest of the directory lists, and the directory. What else is in
// it is kept: the directory is renamed to `previous-<UTC time>-<name>` then. Returns the new path,
// "" when nothing was kept.
std::string remove_written(FileSystem& file_system, const std::string& path,
                           const std::string& name);

// Removes the files in `names`, which are paths below `path`, and any directory left empty; never
// follows links, but removes a named link itself. Returns the remaining entries; a directory with
// no listed file is returned as one entry.
std::vector<std::string> remove_named(FileSystem& file_system, const std::string& path,
                                      const std::vector<std::string>& names);

// Renames `path`, be it a link, a file or a directory, to `previous-<UTC time>-<name>` in its
// directory, a name that nothing has. Durable on return. Returns the new path.
std::string put_aside(FileSystem& file_system, const std::string& path, const std::string& name);

// `<directory>/<word>-<UTC time>-<name>`, with a number when something has that name.
std::string dated_path(const std::string& directory, const std::string& word,
                       const std::string& name);
inline std::string previous_path(const std::string& directory, const std::string& name) {
  return dated_path(directory, "previous", name);
}

}  // namespace fastsft
