#pragma once

#include <string>

namespace fastsft {

// Returns the message for a failed device: the rank's step and phase, the first line of `error`
// (the device's message), and the remedy.
std::string device_failure(const std::string& error);

// Installs a std::terminate handler for failed devices. After a device failure every later call on
// the device fails, also in destructors, so the process ends by std::terminate. The handler then
// prints `device_failure` and exits with status 1. Other terminations are unchanged.
void explain_device_failures();

}  // namespace fastsft
