#pragma once

#include <cstdint>

namespace fastsft {

// Counts what torch's CPU allocator hands out while it runs, in all threads; for proofs, at no cost
// when it is off. `start` puts a counting allocator before torch's own and forgets earlier counts;
// memory from before is not counted, memory that outlives `stop` stays valid. One at a time:
// std::invalid_argument otherwise.
class AllocationMeter {
 public:
  static void start();
  static void stop();
  static int64_t held();   // bytes now
  static int64_t count();  // pieces of memory handed out since `start`
  static int64_t peak();   // the most bytes held at once since `start`, also after `stop`
};

}  // namespace fastsft
