#include "train/allocation_meter.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>

#include "core/error.h"

namespace fastsft {
namespace {

// torch asks for the allocator with the highest priority given so far.
constexpr uint8_t kPriority = 100;

std::atomic<int64_t> held_bytes{0}, peak_bytes{0};

struct Counted {
  c10::DataPtr memory;
  int64_t size;
};

void give_back(void* context) {
  auto* counted = static_cast<Counted*>(context);
  held_bytes -= counted->size;
  delete counted;
}

class CountingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    c10::DataPtr memory = inner->allocate(size);
    const int64_t now = held_bytes += static_cast<int64_t>(size);
    int64_t peak = peak_bytes;
    while (now > peak && !peak_bytes.compare_exchange_weak(peak, now)) {
    }
    void* data = memory.get();
    const c10::Device device = memory.device();
    return {data, new Counted{std::move(memory), static_cast<int64_t>(size)}, &give_back, device};
  }
  void copy_data(void* to, const void* from, size_t size) const override {
    default_copy_data(to, from, size);
  }

  c10::Allocator* inner = nullptr;
};

// Never destroyed: tensors may outlive the meter.
CountingAllocator& counting() {
  static auto* allocator = new CountingAllocator;
  return *allocator;
}

}  // namespace

void AllocationMeter::start() {
  require(counting().inner == nullptr, "the allocation meter is running; stop it first");
  counting().inner = c10::GetCPUAllocator();
  held_bytes = peak_bytes = 0;
  c10::SetCPUAllocator(&counting(), kPriority);
}

void AllocationMeter::stop() {
  require(counting().inner != nullptr, "the allocation meter is not running; start it first");
  c10::SetCPUAllocator(counting().inner, kPriority);
  counting().inner = nullptr;
}

int64_t AllocationMeter::held() { return held_bytes; }
int64_t AllocationMeter::peak() { return peak_bytes; }

}  // namespace fastsft
