#pragma once

#include <string>
#include <vector>

#include "storage/posix_call.h"

namespace fastsft {

// Checks for reasons why the kernel would refuse to remove, rename or replace a path: a person has
// protected it, or another user owns it. The checks change nothing, so a path that cannot be
// removed keeps its name.

// Returns why `path` cannot be removed: it is immutable, append-only or a mount point, or the user
// may not change its folder. "" if it can be removed or does not exist. Entries of a directory are
// not checked.
std::string protection_of(const std::string& path);
// Returns why `directory` or anything in it cannot be removed, or "".
std::string protection_inside(const std::string& directory);

// Messages, one for each path that could not be removed.
using Unremoved = std::vector<std::string>;

// Calls `remove`. If it throws FileError, the message is added to `unremoved`; if `unremoved` is
// null, the exception is rethrown.
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
