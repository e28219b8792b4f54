#include "fibers/memory.h"

#include <cstdlib>
#include <cstring>
#include <map>

#include "fibers/reports.h"
#include "fibers/schedule.h"

namespace cuda_on_cpu {
namespace {

struct Piece {
  char* at = nullptr;
  size_t bytes = 0;
  bool used = false;

  bool holds(const void* address) const {
    const auto* const p = static_cast<const char*>(address);
    return p >= at && p < at + bytes;
  }
};

std::map<const void*, Piece> statics;  // by tag
std::map<const void*, size_t> limits;  // by kernel
Piece dynamic;

char* allocate(size_t bytes) {
  void* made = nullptr;
  if (posix_memalign(&made, 256, bytes) != 0) std::abort();
  return static_cast<char*>(made);
}

}  // namespace

void begin_shared_memory(size_t bytes) {
  dynamic = {.at = bytes > 0 ? allocate(bytes) : nullptr, .bytes = bytes};
}

void end_shared_memory() {
  std::free(dynamic.at);
  dynamic = {};
}

void fill_shared_memory() {
  for (auto& [tag, piece] : statics) {
    std::memset(piece.at, schedule().pattern, piece.bytes);
    piece.used = false;
  }
  if (dynamic.at != nullptr) std::memset(dynamic.at, schedule().pattern, dynamic.bytes);
}

void check_shared_memory() {
  size_t bytes = dynamic.bytes;
  for (const auto& [tag, piece] : statics) bytes += piece.used ? piece.bytes : 0;
  if (dynamic.bytes <= kSharedWithoutAsking && bytes > kSharedWithoutAsking) {
    report("static and dynamic shared memory are together over 48 KiB");
  }
}

bool is_shared_memory(const void* address) {
  if (dynamic.holds(address)) return true;
  for (const auto& [tag, piece] : statics) {
    if (piece.holds(address)) return true;
  }
  return false;
}

size_t dynamic_limit(const void* kernel) {
  const auto found = limits.find(kernel);
  return found == limits.end() ? kSharedWithoutAsking : found->second;
}

bool allow_dynamic_memory(const void* kernel, int bytes) {
  const auto wanted = static_cast<size_t>(bytes);
  if (wanted > kMostShared) return false;
  limits[kernel] = wanted;
  return true;
}

void* static_memory(const void* tag, size_t bytes) {
  auto [at, fresh] = statics.try_emplace(tag);
  if (fresh) {
    at->second = {.at = allocate(bytes), .bytes = bytes};
    std::memset(at->second.at, schedule().pattern, bytes);
  }
  at->second.used = true;
  return at->second.at;
}

void* dynamic_memory() {
  if (dynamic.at == nullptr) report("dynamic shared memory is used, but the launch gives none");
  return dynamic.at;
}

}  // namespace cuda_on_cpu
