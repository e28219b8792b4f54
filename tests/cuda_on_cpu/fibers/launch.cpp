#include <deque>
#include <mutex>
#include <random>
#include <string_view>

#include "fibers/block.h"
#include "fibers/memory.h"
#include "fibers/race_trace.h"
#include "fibers/reports.h"
#include "fibers/schedule.h"

namespace cuda_on_cpu {
namespace {

constexpr unsigned kMostBlocksX = 0x7fffffff, kMostBlocksYZ = 65535;

std::deque<Instance>& instances() {
  static std::deque<Instance> all;
  return all;
}
std::mutex one_launch;
uint64_t launches;

std::string text_of(const dim3& d) {
  return std::to_string(d.x) + " x " + std::to_string(d.y) + " x " + std::to_string(d.z);
}

bool within_limits(const Instance& instance, const Config& c) {
  const dim3 &grid = c.grid, &block = c.block;
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  const bool block_fits = threads > 0 && threads <= 1024 && block.z <= 64;
  const bool grid_fits = grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.x <= kMostBlocksX &&
                         grid.y <= kMostBlocksYZ && grid.z <= kMostBlocksYZ;
  const bool memory_fits = c.shared <= dynamic_limit(instance.address);
  if (!block_fits) report("no device launches a block of " + text_of(block));
  if (!grid_fits) report("no device launches a grid of " + text_of(grid));
  if (!memory_fits) {
    report(std::to_string(c.shared) + " bytes of dynamic shared memory, allowed are " +
           std::to_string(dynamic_limit(instance.address)));
  }
  return block_fits && grid_fits && memory_fits;
}

void run_blocks(const Config& c, void (*call)(void*), void* arguments) {
  std::mt19937 random(schedule().seed);
  const uint64_t count = uint64_t{c.grid.x} * c.grid.y * c.grid.z;
  for (const uint64_t number : order_of_blocks(count, random)) {
    blockIdx = {static_cast<unsigned>(number % c.grid.x),
                static_cast<unsigned>(number / c.grid.x % c.grid.y),
                static_cast<unsigned>(number / c.grid.x / c.grid.y)};
    fill_shared_memory();
    if (!run_block(launches, number, c.block, call, arguments, random)) return;
    check_shared_memory();
  }
}

}  // namespace

// "... [with ...; void (* kKernel)(Args ...) = space::{anonymous}::name<float, 4>]" -> "name<float,
// 4>"
Instance& enroll(const void* address, const char* file, const char* pretty_function,
                 const char* type, Bind bind) {
  constexpr std::string_view kBefore = "{anonymous}::";
  const std::string_view text = pretty_function;
  const size_t begin = text.rfind(kBefore) + kBefore.size(), end = text.find_last_of(']');
  return instances().emplace_back(
      Instance{address, file, std::string(text.substr(begin, end - begin)), type, bind});
}

void for_each_instance(const std::function<void(Instance&)>& visit) {
  for (Instance& instance : instances()) visit(instance);
}

void run(Instance& instance, const Config& c, void (*call)(void*), void* arguments) {
  const std::lock_guard lock(one_launch);
  set_kernel(instance.name + " of " + instance.file);
  if (!within_limits(instance, c)) return;
  ++launches;
  ++instance.launches;
  blockDim = c.block;
  gridDim = c.grid;
  begin_shared_memory(c.shared);
  begin_trace();
  run_blocks(c, call, arguments);
  end_trace();
  end_shared_memory();
}

}  // namespace cuda_on_cpu

// What Python asks for.
extern "C" {
void cuda_on_cpu_schedule(int order, unsigned seed, int pattern) {
  cuda_on_cpu::schedule() = {.order = static_cast<cuda_on_cpu::Order>(order),
                             .seed = seed,
                             .pattern = static_cast<unsigned char>(pattern)};
}
int cuda_on_cpu_instances() { return static_cast<int>(cuda_on_cpu::instances().size()); }
const char* cuda_on_cpu_instance_file(int i) {
  return cuda_on_cpu::instances()[static_cast<size_t>(i)].file.c_str();
}
const char* cuda_on_cpu_instance_name(int i) {
  return cuda_on_cpu::instances()[static_cast<size_t>(i)].name.c_str();
}
uint64_t cuda_on_cpu_instance_launches(int i) {
  return cuda_on_cpu::instances()[static_cast<size_t>(i)].launches;
}
uint64_t cuda_on_cpu_traced_accesses() { return cuda_on_cpu::traced_accesses(); }
}
