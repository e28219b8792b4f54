// Streams, events and settings of the fake device; one lock guards them all.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>

#include "device.h"

namespace fake_device {

// A vector clock: for each stream, the number of its operations that are known to come before.
using VectorClock = std::vector<uint64_t>;

// A place in a stream at which an event was recorded.
struct Recording {
  int stream = 0;
  uint64_t serial = 0;
  VectorClock clock;
};

struct Event {
  unsigned flags = 0;
  uint64_t recorded = 0, completed = 0;  // generations: an event is recorded again and again
  std::map<uint64_t, Recording> recordings;
  std::chrono::steady_clock::time_point completed_at{};
  int queries = 0;  // in a row that found it unfinished
};

struct Operation {
  enum Kind { kWork, kRecord, kWait } kind = kWork;
  std::string name;
  Ranges ranges;
  Work work;
  std::shared_ptr<Event> event;
  uint64_t generation = 0, serial = 0;
  int stream = 0;
  VectorClock clock;
  bool checked = false;  // for races
  double flops = 0;
};

struct Stream {
  int id = 0, priority = 0;
  bool eager = false;    // under Schedule::kMixed
  bool running = false;  // its head is executing: work may call into the device
  std::deque<Operation> queue;
  uint64_t last = 0;  // serial of the last operation that was appended
  int queries = 0;    // in a row that found it unfinished
  VectorClock clock;
};

enum class Schedule {
  kEager,   // every operation at once
  kLazy,    // only operations that a waiting host needs
  kRandom,  // a few operations of random streams at each call
  kMixed,   // each stream is eager or lazy, by the seed
};

struct State {
  State();

  std::recursive_mutex mutex;
  // settings (FAKE_DEVICE_*, see settings.cpp)
  Schedule schedule;
  std::mt19937 random;
  bool check_races, poison, counts;
  int devices, patience_seconds;
  size_t memory_bytes, limit_bytes, others_bytes;
  uint64_t fail_at;

  std::vector<std::unique_ptr<Stream>> streams;  // by id; 0 is the default stream
  VectorClock host;
  uint64_t serials = 0, executed = 0;
  size_t used_bytes = 0;
  std::atomic<uint64_t> progress{0};
  bool in_background = false;
  cudaError_t sticky = cudaSuccess;
};
State& state();

Stream& stream_of(cudaStream_t handle);
Stream& new_stream(int priority);

// Appends an operation, stamps its clock and lets the schedule run. The caller holds the lock.
void append(Stream& stream, Operation operation);
// Runs operations until `stream` has finished `serial`; aborts if nothing can run any more.
void run_until(std::unique_lock<std::recursive_mutex>& lock, Stream& stream, uint64_t serial);
// Runs what `serial` of `stream` needs and returns; called after repeated queries by the host.
void run_for_query(Stream& stream, uint64_t serial);
// The host knows that everything before `clock` has finished.
void host_joins(const VectorClock& clock);
void join(VectorClock& clock, const VectorClock& other);

// races.cpp: compares an operation's bytes with earlier accesses.
void check_for_races(const Operation& operation, const Ranges& ranges);
void forget_accesses(const void* data, size_t bytes);

// left_out.cpp: whether this call's place in the product is the one that is left out.
bool is_left_out(const char* call);

// overlap.cpp
void count_overlap(const Operation& operation);

// reports.cpp
void count(const std::string& name, uint64_t times);
void count_operation(const Operation& operation, const Ranges& ranges);
// Appends a line to FAKE_DEVICE_REPORT/<file>.<pid>, or prints it if there is no such folder.
void report_line(const char* file, const std::string& line);

// Remembers an error for cudaGetLastError and returns it; a sticky error wins.
cudaError_t returned(cudaError_t error);

}  // namespace fake_device

#define COUNT_CALL() fake_device::count_call(__func__)
#define EXPORTED extern "C" __attribute__((visibility("default")))
