#pragma once

#include <string>

namespace fastsft {

// One run at a time in an output directory. The lock is the kernel's and goes with the process, so
// that a killed run leaves none, whatever processes it has forked; `.fastsft-lock` also says who
// holds it. It works between hosts where the file system passes locks on (NFS does).
class RunLock {
 public:
  // Throws std::invalid_argument naming host, process and start time when another run holds it.
  // `holder` and `way_out` are words of that message.
  explicit RunLock(
      const std::string& directory, const std::string& holder = "another run",
      const std::string& way_out = "wait for it, stop it, or choose another --output_dir");
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Gives the directory free; a second call does nothing.
  void release() noexcept;

 private:
  friend class HeldLocks;

  std::string path_;
  int descriptor_ = -1;
};

}  // namespace fastsft
