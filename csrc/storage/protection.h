#pragma once

#include <string>
#include <vector>

#include "storage/posix_call.h"

namespace fastsft {

// Why the kernel would refuse to remove, rename or replace something: what a person has protected,
// or another user owns. Found without a change, so that what cannot go keeps its name.

// Of `path` itself: immutable or append-only, a mount point, in a folder that this user may not
// change. "" when nothing is in the way, and when there is no such path.
std::string protection_of(const std::string& path);
// The same of a directory and everything in it.
std::string protection_inside(const std::string& directory);

// A line for each of what could not be removed.
using Unremoved = std::vector<std::string>;

// Calls `remove`; where that fails with FileError, its words are a line of `unremoved`, unless
// nobody asks for them.
template <typename Remove>
void or_unremoved(Unremoved* unremoved, const Remove& remove) {
  try {
    remove();
  } catch (const FileError& error) {
    if (unremoved == nullptr) throw;
    unremoved->push_back(error.what());
  }
}

}  // namespace fastsft
