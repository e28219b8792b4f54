#include "fibers/block.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "fibers/fiber.h"
#include "fibers/reports.h"
#include "fibers/schedule.h"

namespace cuda_on_cpu {
namespace {

enum class State { kReady, kAtBarrier, kInShuffle, kDone };

struct Thread {
  State state = State::kReady;
  Index index;
  unsigned epoch = 0, shuffles = 0;
  Where where;  // of the barrier or shuffle that it waits in
};

struct Warp {
  unsigned mask = 0, arrived = 0;
  Where where;
  // Two sets: a fast lane may write for the next shuffle before a slow one has read.
  alignas(16) char values[2][32][16];
};

struct Block {
  uint64_t launch = 0, number = 0;
  unsigned count = 0, alive = 0, at_barrier = 0;
  bool trapped = false, unfinished = true;
  Where barrier;  // that of the threads at_barrier
  void (*call)(void*) = nullptr;
  void* arguments = nullptr;
  std::array<Thread, kMaxFibers> threads;
  std::array<Warp, kMaxFibers / 32> warps;
};
Block block;
unsigned now;

Warp& warp() { return block.warps[now / 32]; }

bool same(const Where& a, const Where& b) {
  const bool same_name =
      a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0;
  return a.line() == b.line() && same_name;
}

void open_barrier() {
  for (unsigned t = 0; t < block.count; ++t) {
    Thread& thread = block.threads[t];
    if (thread.state != State::kAtBarrier) continue;
    thread.state = State::kReady;
    ++thread.epoch;
  }
  block.at_barrier = 0;
}

void thread_main() {
  fiber_has_begun();
  block.call(block.arguments);
  block.threads[now].state = State::kDone;
  --block.alive;
  if (warp().arrived != 0) {
    report("a thread returned while its warp waits in the shuffle at " + text_of(warp().where));
  }
  if (block.alive > 0 && block.at_barrier == block.alive) {
    report("threads returned before a barrier that the others wait at");
    open_barrier();
  }
  leave_for_good();
}

void prepare(const dim3& threads) {
  block.count = block.alive = threads.x * threads.y * threads.z;
  block.at_barrier = 0;
  block.trapped = false;
  for (auto& each : block.warps) each.arrived = 0;
  for (unsigned t = 0; t < block.count; ++t) {
    prepare_fiber(t, &thread_main, block.unfinished);
    block.threads[t] = {
        .index = {t % threads.x, t / threads.x % threads.y, t / (threads.x * threads.y)}};
  }
}

bool go_on(unsigned thread) {
  if (block.trapped || block.threads[thread].state != State::kReady) return false;
  now = thread;
  threadIdx = block.threads[thread].index;
  enter_fiber(thread);
  return true;
}

void report_deadlock() {
  const auto waits = [](const Thread& t) { return t.state != State::kDone; };
  const auto* first =
      std::find_if(block.threads.begin(), block.threads.begin() + block.count, waits);
  report("deadlock: thread " + std::to_string(first - block.threads.begin()) + " waits at " +
         text_of(first->where));
}

// The lanes of `mask` that are there; the others are reported.
unsigned present(unsigned mask) {
  if (block.alive == block.count && block.count % 32 == 0) return mask;
  const unsigned begin = now / 32 * 32, lanes = std::min(32u, block.count - begin);
  for (unsigned i = 0; i < 32; ++i) {
    if ((mask >> i & 1) == 0) continue;
    const bool exists = i < lanes;
    if (exists && block.threads[begin + i].state != State::kDone) continue;
    report(exists ? "a shuffle's mask names a lane that has returned"
                  : "a shuffle's mask names a lane that the block does not have");
    mask &= ~(1u << i);
  }
  return mask;
}

void meet_in_shuffle(unsigned mask, const Where& where) {
  Warp& own = warp();
  if (own.arrived != 0 && (own.mask != mask || !same(own.where, where))) {
    report("lanes of a warp meet in different shuffles: " + text_of(own.where) + " and " +
           text_of(where));
  }
  own.mask = mask;
  own.where = where;
  own.arrived |= 1u << lane();
  if (own.arrived != mask) return;
  own.arrived = 0;
  for (unsigned i = 0; i < 32; ++i) {
    if (mask >> i & 1) block.threads[now / 32 * 32 + i].state = State::kReady;
  }
}

}  // namespace

Place place_now() { return {block.launch, block.number, now, block.threads[now].epoch}; }
unsigned threads_of_block() { return block.count; }

int lane() { return static_cast<int>(now % 32); }

bool run_block(uint64_t launch, uint64_t number, const dim3& threads, void (*call)(void*),
               void* arguments, std::mt19937& random) {
  block.launch = launch, block.number = number;
  block.call = call, block.arguments = arguments;
  prepare(threads);
  while (block.alive > 0 && !block.trapped && one_turn(block.count, random, go_on)) {
  }
  block.unfinished = block.alive > 0;
  if (block.unfinished && !block.trapped) report_deadlock();
  return !block.trapped;
}

void block_barrier(const Where& where) {
  if (block.at_barrier > 0 && !same(block.barrier, where)) {
    report("threads wait at different barriers: " + text_of(block.barrier) + " and " +
           text_of(where));
  }
  block.barrier = where;
  Thread& self = block.threads[now];
  self.where = where;
  self.state = State::kAtBarrier;
  if (++block.at_barrier == block.alive) {
    if (block.alive != block.count) {
      report("a barrier after some threads have returned: " + text_of(where));
    }
    open_barrier();
  }
  leave_fiber();
}

void shuffle(unsigned mask, const void* mine, size_t bytes, int source, void* theirs,
             const Where& where) {
  if ((mask >> lane() & 1) == 0) report("a lane outside its own mask: " + text_of(where));
  mask = present(mask);
  Thread& self = block.threads[now];
  auto& values = warp().values[self.shuffles++ & 1];
  std::memcpy(values[lane()], mine, bytes);
  self.where = where;
  self.state = State::kInShuffle;
  meet_in_shuffle(mask, where);
  leave_fiber();
  if ((mask >> source & 1) == 0)
    report("a shuffle reads a lane outside its mask: " + text_of(where));
  std::memcpy(theirs, values[source], bytes);
}

void trap(const Where& where) {
  report("the kernel trapped at " + text_of(where));
  block.trapped = true;
  leave_for_good();
}

void launch_bounds(unsigned threads) {
  if (block.count <= threads) return;
  report("a block of " + std::to_string(block.count) + " threads, launch bounds " +
         std::to_string(threads));
}

}  // namespace cuda_on_cpu
