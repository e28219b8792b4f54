// Mutations without a build: the waits of one place in the product's extension are left out.
#include <dlfcn.h>
#include <execinfo.h>

#include "state.h"

namespace fake_device {
namespace {

constexpr int kMaxFrames = 40;
constexpr int kNamedFrames = 4;  // of the extension, innermost first

struct Frame {
  bool in_extension;
  uintptr_t offset;
};

Frame frame_of(const void* address) {
  Dl_info info{};
  ::dladdr(address, &info);
  const std::string file = info.dli_fname ? info.dli_fname : "";
  return {file.find("fastsft/_C") != std::string::npos,
          reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(info.dli_fbase)};
}

// "wait:1a2b3c,4d5e6f": a call and the offsets of its innermost frames in the extension.
std::string place_of_call(const char* call) {
  static std::mutex mutex;
  static auto* const known = new std::map<const void*, Frame>;
  void* addresses[kMaxFrames];
  const int count = ::backtrace(addresses, kMaxFrames);
  std::string place = std::string(call) + ":";
  const std::lock_guard lock(mutex);
  for (int i = 2, named = 0; i < count && named < kNamedFrames; ++i) {
    auto [it, is_new] = known->try_emplace(addresses[i]);
    if (is_new) it->second = frame_of(addresses[i]);
    if (!it->second.in_extension) continue;
    char text[24];
    std::snprintf(text, sizeof text, "%s%lx", named++ ? "," : "", it->second.offset);
    place += text;
  }
  return place;
}

// Not guarded: it changes while no other thread calls the device.
std::string& left_out() {
  static auto* const place = new std::string;
  return *place;
}

}  // namespace

bool is_left_out(const char* call) {
  const std::string& place_left_out = left_out();
  if (place_left_out.empty() && !state().counts) return false;
  const std::string place = place_of_call(call);
  count_call(place);
  return place == place_left_out;
}

}  // namespace fake_device

// From now on leaves out the waits of `place`, as FAKE_DEVICE_COUNTS lists it; "": none.
EXPORTED void fake_device_leave_out(const char* place) { fake_device::left_out() = place; }
