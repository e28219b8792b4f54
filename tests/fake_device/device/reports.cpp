// What tests read afterwards: files of FAKE_DEVICE_REPORT, one of each kind for each process.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "state.h"

namespace fake_device {
namespace {

const char* report_folder() {
  static const char* const folder = std::getenv("FAKE_DEVICE_REPORT");
  return folder;
}

std::string report_path(const char* file) {
  return std::string(report_folder()) + "/" + file + "." + std::to_string(::getpid());
}

struct Count {
  uint64_t calls = 0, bytes_read = 0, bytes_written = 0;
  double flops = 0;
};

struct Counts {
  std::mutex mutex;
  std::map<std::string, Count> all;
};

void write_counts();

Counts& counts() {
  static auto* const only = [] {
    std::atexit(write_counts);
    return new Counts;
  }();
  return *only;
}

// A line for each name: calls, bytes read, bytes written, FLOPs, name; separated by tabs.
void write_counts() {
  if (!report_folder()) return;
  FILE* file = std::fopen(report_path("counts").c_str(), "w");
  if (!file) return;
  for (const auto& [name, count] : counts().all) {
    std::fprintf(file, "%lu\t%lu\t%lu\t%.0f\t%s\n", count.calls, count.bytes_read,
                 count.bytes_written, count.flops, name.c_str());
  }
  std::fclose(file);
}

}  // namespace

void report_line(const char* file, const std::string& line) {
  std::fprintf(stderr, "fake device: %s: %s\n", file, line.c_str());
  if (!report_folder()) return;
  if (FILE* out = std::fopen(report_path(file).c_str(), "a")) {
    std::fprintf(out, "%s\n", line.c_str());
    std::fclose(out);
  }
}

void report_wrong_call(const std::string& message) { report_line("wrong_calls", message); }

void fail(const std::string& message) {
  report_line("failures", message);
  state().sticky = cudaErrorLaunchFailure;
}

void count(const std::string& name, uint64_t times) {
  if (!state().counts) return;
  const std::lock_guard lock(counts().mutex);
  counts().all[name].calls += times;
}

void count_call(const std::string& name) { count("call " + name, 1); }

void count_operation(const Operation& operation, const Ranges& ranges) {
  if (!state().counts) return;
  const std::lock_guard lock(counts().mutex);
  Count& count = counts().all["operation " + operation.name];
  if (!operation.checked) {  // else these are bytes that the running kernel has touched
    ++count.calls;
    count.flops += operation.flops;
  }
  for (const Range& range : ranges) {
    (range.write ? count.bytes_written : count.bytes_read) += range.counted;
  }
}

}  // namespace fake_device

// The counts so far, for tests of one process.
EXPORTED void fake_device_write_counts() { fake_device::write_counts(); }
EXPORTED void fake_device_reset_counts() {
  const std::lock_guard lock(fake_device::counts().mutex);
  fake_device::counts().all.clear();
}
