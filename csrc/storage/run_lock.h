#pragma once

#include <string>

namespace fastsft {

// A lock that allows one run at a time in an output directory. The kernel releases the lock when
// the process ends, even if it was killed and its forked processes live on. The file
// `.fastsft-lock` also names the holder. The lock works between hosts if the file system supports
// that, as NFS does.
class RunLock {
 public:
  // Throws std::invalid_argument with host, process and start time if another run holds the lock.
  // `holder` and `way_out` are parts of that message.
  explicit RunLock(
      const std::string& directory, const std::string& holder = "another run",
      const std::string& way_out = "wait for it, stop it, or choose another --output_dir");
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Releases the lock. A second call does nothing.
  void release() noexcept;

 private:
  friend class HeldLocks;

  std::string path_;
  int descriptor_ = -1;
};

}  // namespace fastsft
