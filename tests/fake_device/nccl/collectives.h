// Collectives and messages between the processes of one machine, through files of
// FAKE_DEVICE_REPORT, or else of /dev/shm. Each is
// an operation of its stream: the stream stops until all peers have come, other streams go on.
#pragma once

#include <nccl.h>

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "device/device.h"

struct ncclComm {
  std::filesystem::path folder;
  int rank = 0, size = 1, device = 0;
  uint64_t started = 0, finished = 0;      // collectives
  std::map<int, uint64_t> sent, received;  // messages, by the other rank
  std::shared_ptr<bool> aborted = std::make_shared<bool>(false);
};

namespace fake_device {

enum class Transfer {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kReduce,
  kAllToAll,
  kSend,
  kRecv
};
const char* name_of(Transfer transfer);

// What all ranks must agree on.
struct Header {
  Transfer transfer;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root;  // the peer of a message
  uint64_t count;
  bool operator==(const Header&) const = default;
};

struct Request {
  Header header;
  const void* send;
  void* recv;
  ncclComm* comm;
  cudaStream_t stream;

  size_t sent_bytes() const;
  size_t received_bytes() const;
  Ranges ranges() const;
};

// Enqueues the requests of one group.
void start(const std::vector<Request>& group);

}  // namespace fake_device
