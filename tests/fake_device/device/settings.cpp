#include <cstdlib>

#include "state.h"

namespace fake_device {
namespace {

std::string setting(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value && *value ? value : otherwise;
}

int number(const char* name, const char* otherwise) { return std::stoi(setting(name, otherwise)); }

Schedule schedule_named(const std::string& name) {
  const std::map<std::string, Schedule> all = {{"eager", Schedule::kEager},
                                               {"lazy", Schedule::kLazy},
                                               {"random", Schedule::kRandom},
                                               {"mixed", Schedule::kMixed}};
  const auto found = all.find(name);
  if (found != all.end()) return found->second;
  std::fprintf(stderr, "FAKE_DEVICE_SCHEDULE: expected eager, lazy, random or mixed, got %s\n",
               name.c_str());
  std::abort();
}

}  // namespace

// FAKE_DEVICE_SCHEDULE    eager (default), lazy, random or mixed
// FAKE_DEVICE_SEED        of random and mixed; default 1
// FAKE_DEVICE_RACES       1: compare the bytes of every operation with earlier ones
// FAKE_DEVICE_COUNTS      1: count operations, their bytes and FLOPs, by name
// FAKE_DEVICE_DEVICES     number of devices; default 1
// FAKE_DEVICE_MEMORY_GIB  of each; default 16
// FAKE_DEVICE_FREE_MIB    what is free at first, the rest being others'; default: all
// FAKE_DEVICE_LIMIT_MIB   what cudaMalloc grants, whatever cudaMemGetInfo says; default: all
// FAKE_DEVICE_POISON      0: do not fill new memory with NaN
// FAKE_DEVICE_FAIL_AT     number of the operation that fails as an illegal access would
// FAKE_DEVICE_REFUSE_CUDNN  set: cuDNN has no engine for any graph
// FAKE_DEVICE_PATIENCE    seconds that the host waits for the collectives of other ranks; default
// 60
State::State()
    : schedule(schedule_named(setting("FAKE_DEVICE_SCHEDULE", "eager"))),
      random(static_cast<unsigned>(number("FAKE_DEVICE_SEED", "1"))),
      check_races(number("FAKE_DEVICE_RACES", "0") != 0),
      poison(number("FAKE_DEVICE_POISON", "1") != 0),
      counts(number("FAKE_DEVICE_COUNTS", "0") != 0),
      devices(number("FAKE_DEVICE_DEVICES", "1")),
      patience_seconds(number("FAKE_DEVICE_PATIENCE", "60")),
      memory_bytes(
          static_cast<size_t>(std::stod(setting("FAKE_DEVICE_MEMORY_GIB", "16")) * (1ull << 30))),
      limit_bytes(memory_bytes),
      others_bytes(0),
      fail_at(std::stoull(setting("FAKE_DEVICE_FAIL_AT", "0"))) {
  const std::string limit = setting("FAKE_DEVICE_LIMIT_MIB", "");
  if (!limit.empty()) limit_bytes = std::stoull(limit) << 20;
  const std::string free = setting("FAKE_DEVICE_FREE_MIB", "");
  if (!free.empty()) others_bytes = memory_bytes - (std::stoull(free) << 20);
  streams.push_back(std::make_unique<Stream>());
  streams.front()->eager = random() % 2 == 0;
}

// Never destroyed: static objects of torch call the device while they are destroyed.
State& state() {
  static auto* const only = new State;
  return *only;
}

}  // namespace fake_device
