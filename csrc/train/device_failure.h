#pragma once

#include <string>

namespace fastsft {

// Where this process is, what its device says, and the way out; `error` is the device's message, of
// which the first line counts.
std::string device_failure(const std::string& error);

// A device that has failed makes every later call on it fail, those of destructors too, which ends
// the process by std::terminate. From here on such a process says `device_failure` and leaves with
// status 1. Other terminations are as before.
void explain_device_failures();

}  // namespace fastsft
