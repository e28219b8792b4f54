// The real file system over calls that misbehave as those of a network file system
// (docs/spec/reliability.md, row R18): interrupted and short writes, EIO and ESTALE for a while,
// answers that were lost on the way so that the second try finds the work done.
//   posix_faults DIRECTORY TRIALS
// prints what was injected and how many trials went wrong; the exit status is 1 when one did.

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <map>
#include <random>
#include <string>

#include "storage/atomic_directory.h"
#include "storage/checksummed_file.h"
#include "storage/file_ranges.h"

namespace {

struct Weather {
  std::mt19937_64 random{1};
  bool bad = false;      // whether calls fail at all
  bool forever = false;  // ESTALE never ends
  int in_a_row = 0;      // failures of the same kind since the last success
  std::map<std::string, int> injected;

  // Whether this call fails now; no more often in a row than is retried.
  bool strikes(const char* kind, unsigned one_in) {
    if (!bad || (!forever && (in_a_row >= 2 || random() % one_in != 0))) return false;
    ++in_a_row;
    ++injected[kind];
    return true;
  }
  void clear() { in_a_row = 0; }
};
Weather weather;

int fail(int error) {
  errno = error;
  return -1;
}

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

ssize_t pwrite(int descriptor, const void* data, size_t size, off_t offset) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  if (weather.strikes("EINTR", 6)) return fail(EINTR);
  if (weather.strikes("EIO", 8)) return fail(EIO);
  if (size > 1 && weather.strikes("short write", 3))
    return real(descriptor, data, size / 2, offset);
  weather.clear();
  return real(descriptor, data, size, offset);
}

// Without waiting for the disk: what it keeps is not what is tried here.
int fsync(int) { return weather.strikes("EINTR", 6) ? fail(EINTR) : (weather.clear(), 0); }

// The pauses between two tries.
int nanosleep(const struct timespec*, struct timespec*) { return 0; }
int clock_nanosleep(clockid_t, int, const struct timespec*, struct timespec*) { return 0; }

// The work is done, the answer is lost, and the next try fails because it was done.
int renameat(int from_at, const char* from, int to_at, const char* to) {
  static const auto real = next<int (*)(int, const char*, int, const char*)>("renameat");
  if (weather.strikes("lost answer", 3)) return real(from_at, from, to_at, to), fail(ESTALE);
  weather.clear();
  return real(from_at, from, to_at, to);
}

int mkdirat(int at, const char* path, mode_t mode) {
  static const auto real = next<int (*)(int, const char*, mode_t)>("mkdirat");
  if (weather.strikes("lost answer", 3)) return real(at, path, mode), fail(ESTALE);
  weather.clear();
  return real(at, path, mode);
}

int unlinkat(int at, const char* path, int flags) {
  static const auto real = next<int (*)(int, const char*, int)>("unlinkat");
  if (weather.strikes("lost answer", 3)) return real(at, path, flags), fail(EIO);
  weather.clear();
  return real(at, path, flags);
}
}

namespace fastsft {
namespace {

namespace fs = std::filesystem;

void save(const std::string& output, int step) {
  FileSystem& files = posix_file_system();
  AtomicDirectory directory(files, output, std::to_string(step));
  Manifest manifest{.step = step, .world_size = 2, .layout_hash = "00", .files = {}};
  std::vector<RangeDigest> ranges;
  for (uint64_t rank = 0; rank < 2; ++rank) {
    const std::string text(4000, static_cast<char>('a' + rank));
    ChecksummedRanges model(files, join_path(directory.path(), "model.bin"));
    model.write_at(rank * text.size(), std::as_bytes(std::span(text)));
    for (auto& range : model.finish()) ranges.push_back(range);
    manifest.files.push_back(
        write_file(files, join_path(directory.path(), "state-" + std::to_string(rank)), text));
  }
  for (const auto& file : join_ranges(ranges)) manifest.files.push_back(file);
  directory.commit("checkpoint-" + std::to_string(step), manifest);
}

// The second save removes the first, so that deletion meets the weather, too.
bool trial(const std::string& output, uint64_t seed) {
  fs::remove_all(output);
  fs::create_directories(output);
  weather.random.seed(seed);
  weather.bad = true;
  bool good = true;
  try {
    save(output, 1);
    save(output, 1);
    save(output, 2);
    delete_directory(posix_file_system(), join_path(output, "checkpoint-1"));
  } catch (const std::exception& error) {
    std::printf("BAD seed %llu: %s\n", static_cast<unsigned long long>(seed), error.what());
    good = false;
  }
  weather.bad = false;
  const auto problems = verify_directory(join_path(output, "checkpoint-2"));
  for (const auto& problem : problems) std::printf("BAD %s\n", problem.c_str());
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(output)) ++entries;
  if (entries != 1) std::printf("BAD %d entries are left\n", entries);
  return good && problems.empty() && entries == 1;
}

// An error that does not end is an error of the save: it does not try forever, and tears nothing.
bool gives_up(const std::string& output) {
  fs::remove_all(output);
  fs::create_directories(output);
  save(output, 1);
  weather.bad = weather.forever = true;
  bool failed = false;
  try {
    save(output, 2);
  } catch (const std::runtime_error&) {
    failed = true;
  }
  weather.bad = weather.forever = false;
  return failed && verify_directory(join_path(output, "checkpoint-1")).empty() &&
         !fs::exists(join_path(output, "checkpoint-2"));
}

}  // namespace
}  // namespace fastsft

int main(int count, char** arguments) {
  if (count != 3) return 2;
  int bad = 0;
  for (int seed = 0; seed < std::atoi(arguments[2]); ++seed) {
    bad += fastsft::trial(arguments[1], static_cast<uint64_t>(seed)) ? 0 : 1;
  }
  for (const auto& [kind, times] : weather.injected) std::printf("%s: %d\n", kind.c_str(), times);
  if (!fastsft::gives_up(arguments[1])) ++bad, std::printf("BAD: an endless error\n");
  std::printf("%s trials, %d bad\n", arguments[2], bad);
  return bad == 0 ? 0 : 1;
}
