#pragma once

#include <string>
#include <vector>

#include "storage/file_system.h"

namespace fastsft {

// Removal of directories. All removals by fastsft use these functions, and none follows a link.

// Name of the file that marks a directory as being written by fastsft, so that all its content may
// be removed.
inline constexpr const char* kOwnerMark = ".fastsft-owner";

// Returns true if fastsft wrote the directory `path`: it is no link and holds a valid manifest of
// fastsft.
bool holds_manifest(FileSystem& file_system, const std::string& path);
// Returns true if fastsft was writing or removing the directory: it holds the owner mark or a valid
// manifest, or is empty.
bool is_unfinished(FileSystem& file_system, const std::string& path);

// Removes the directory and everything in it. Only for directories that fastsft made under a
// temporary name. Owner mark and manifest are removed last, so that after a crash the directory is
// still recognized as fastsft's.
void remove_whole(FileSystem& file_system, const std::string& path);

// Deletes the files that the directory's manifest lists, and the directory if that empties it.
// Otherwise renames it to `previous-<UTC time>-<name>`. Returns that path, or "" if nothing was
// left.
std::string remove_written(FileSystem& file_system, const std::string& path,
                           const std::string& name);

// Removes the files in `names`, which are paths below `path`, and any directory left empty; never
// follows links, but removes a named link itself. Returns the remaining entries; a directory with
// no listed file is returned as one entry.
std::vector<std::string> remove_named(FileSystem& file_system, const std::string& path,
                                      const std::vector<std::string>& names);

// Renames `path` (a link, a file or a directory) to `previous-<UTC time>-<name>` in its directory,
// a name that is free. Durable on return. Returns the new path.
std::string put_aside(FileSystem& file_system, const std::string& path, const std::string& name);

// Returns `<directory>/<word>-<UTC time>-<name>`, with a number after the time if that path exists.
std::string dated_path(const std::string& directory, const std::string& word,
                       const std::string& name);
inline std::string previous_path(const std::string& directory, const std::string& name) {
  return dated_path(directory, "previous", name);
}

}  // namespace fastsft
