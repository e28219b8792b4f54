#include "train/memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>

#include <atomic>

#include "core/error.h"

namespace fastsft {
namespace {

// torch asks for the allocator with the highest priority given so far.
constexpr uint8_t kPriority = 100;

std::atomic<int64_t> held_bytes{0}, peak_bytes{0}, pieces{0};

int64_t size_of(void* data) { return static_cast<int64_t>(::malloc_usable_size(data)); }

void give_back(void* data) {
  if (data == nullptr) return;
  held_bytes -= size_of(data);
  c10::free_cpu(data);
}

// torch's own way to allocate, counted. The context of a pointer is the pointer itself: oneDNN asks
// for plain memory (raw_allocate), and keeps asking this allocator after `stop`.
class CountingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    void* data = c10::alloc_cpu(size);
    if (data == nullptr) return {nullptr, nullptr, &give_back, c10::Device(c10::DeviceType::CPU)};
    ++pieces;
    const int64_t now = held_bytes += size_of(data);
    int64_t peak = peak_bytes;
    while (now > peak && !peak_bytes.compare_exchange_weak(peak, now)) {
    }
    return {data, data, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t size) const override {
    default_copy_data(to, from, size);
  }

  c10::Allocator* inner = nullptr;  // torch's own while this one is before it
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
  held_bytes = peak_bytes = pieces = 0;
  c10::SetCPUAllocator(&counting(), kPriority);
}

void AllocationMeter::stop() {
  require(counting().inner != nullptr, "the allocation meter is not running; start it first");
  c10::SetCPUAllocator(counting().inner, kPriority);
  counting().inner = nullptr;
}

int64_t AllocationMeter::count() { return pieces; }
int64_t AllocationMeter::held() { return held_bytes; }
int64_t AllocationMeter::peak() { return peak_bytes; }

}  // namespace fastsft
