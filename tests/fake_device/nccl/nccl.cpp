// The calls of libnccl.so.2 that torch's ProcessGroupNCCL makes.
#include <nccl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>

#include "collectives.h"

namespace fs = std::filesystem;

namespace fake_device {
namespace {

constexpr int kVersion = 22809;
constexpr int kMillisecondsToJoin = 120000;

thread_local int group_depth = 0;
thread_local std::vector<Request> group;
int until_refused = 0;  // collectives, the refused one included; 0: none is refused

void flush() {
  const std::vector<Request> requests = std::exchange(group, {});
  start(requests);
}

void check_buffers(const Request& request) {
  const Transfer transfer = request.header.transfer;
  for (const void* pointer : {request.send, static_cast<const void*>(request.recv)}) {
    if (pointer && request.header.count && !is_device_memory(pointer)) {
      report_wrong_call(std::string(name_of(transfer)) + " of memory that is not the device's");
    }
  }
  if (transfer != Transfer::kAllGather) return;
  const auto send = reinterpret_cast<uintptr_t>(request.send);
  const auto recv = reinterpret_cast<uintptr_t>(request.recv);
  const size_t bytes = request.sent_bytes();
  const bool is_apart = send + bytes <= recv || recv + request.received_bytes() <= send;
  const bool is_in_place = send == recv + bytes * static_cast<size_t>(request.comm->rank);
  if (!is_apart && !is_in_place) report_wrong_call("ncclAllGather with overlapping buffers");
}

ncclResult_t add(Transfer transfer, const void* send, void* recv, size_t count, ncclDataType_t type,
                 ncclRedOp_t op, int root, ncclComm* comm, cudaStream_t stream) {
  if (until_refused && --until_refused == 0) return ncclSystemError;
  const Request request{{transfer, type, op, root, count}, send, recv, comm, stream};
  check_buffers(request);
  group.push_back(request);
  if (group_depth == 0) flush();
  return ncclSuccess;
}

fs::path mark(const ncclComm& comm, const char* kind, int rank) {
  return comm.folder / (kind + std::to_string(rank));
}

ncclResult_t join_group(ncclComm_t* out, int size, const ncclUniqueId& id, int rank) {
  auto* comm = new ncclComm;
  const char* reports = std::getenv("FAKE_DEVICE_REPORT");
  comm->folder = fs::path(reports ? reports : "/dev/shm") / std::string(id.internal);
  comm->rank = rank;
  comm->size = size;
  cudaGetDevice(&comm->device);
  fs::create_directories(comm->folder);
  std::ofstream(mark(*comm, "joined.", rank)) << comm->device;
  for (int other = 0; other < size; ++other) {
    for (int tries = 0; !fs::exists(mark(*comm, "joined.", other)); ++tries) {
      if (tries > kMillisecondsToJoin) return ncclSystemError;
      ::usleep(1000);
    }
  }
  if (size > 1) run_in_background();
  *out = comm;
  return ncclSuccess;
}

// The last rank to leave removes the folder.
ncclResult_t leave_group(const ncclComm& comm) {
  std::ofstream(mark(comm, "left.", comm.rank)) << 1;
  for (int rank = 0; rank < comm.size; ++rank) {
    if (!fs::exists(mark(comm, "left.", rank))) return ncclSuccess;
  }
  std::error_code ignored;
  fs::remove_all(comm.folder, ignored);
  return ncclSuccess;
}

}  // namespace
}  // namespace fake_device

using namespace fake_device;

#define NCCL_API extern "C" __attribute__((visibility("default")))

NCCL_API ncclResult_t ncclGetVersion(int* version) {
  *version = kVersion;
  return ncclSuccess;
}
NCCL_API ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  *id = {};
  std::snprintf(id->internal, sizeof id->internal, "fake-device-%d-%lx", ::getpid(),
                static_cast<unsigned long>(now));
  return ncclSuccess;
}
NCCL_API ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  return join_group(comm, size, id, rank);
}
NCCL_API ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                             ncclConfig_t*) {
  return join_group(comm, size, id, rank);
}
NCCL_API ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int size, int rank, int,
                                               ncclUniqueId* ids, ncclConfig_t*) {
  return join_group(comm, size, ids[0], rank);
}
NCCL_API ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
NCCL_API ncclResult_t ncclCommDestroy(ncclComm_t comm) { return leave_group(*comm); }
NCCL_API ncclResult_t ncclCommAbort(ncclComm_t comm) {
  *comm->aborted = true;
  return leave_group(*comm);
}
NCCL_API ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}
NCCL_API ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->size;
  return ncclSuccess;
}
NCCL_API ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  *device = comm->device;
  return ncclSuccess;
}
NCCL_API ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
NCCL_API ncclResult_t ncclCommRegister(const ncclComm_t, void*, size_t, void** handle) {
  *handle = nullptr;
  return ncclSuccess;
}
NCCL_API ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }
NCCL_API const char* ncclGetErrorString(ncclResult_t error) {
  return error == ncclSuccess ? "no error" : "an error of the fake NCCL";
}
NCCL_API const char* ncclGetLastError(ncclComm_t) { return ""; }
NCCL_API ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}
NCCL_API ncclResult_t ncclGroupEnd() {
  if (--group_depth == 0) flush();
  return ncclSuccess;
}

NCCL_API ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                                    ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return add(Transfer::kAllReduce, send, recv, count, type, op, 0, comm, stream);
}
NCCL_API ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count,
                                        ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                        cudaStream_t stream) {
  return add(Transfer::kReduceScatter, send, recv, count, type, op, 0, comm, stream);
}
NCCL_API ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type,
                                    ncclComm_t comm, cudaStream_t stream) {
  return add(Transfer::kAllGather, send, recv, count, type, ncclSum, 0, comm, stream);
}
NCCL_API ncclResult_t ncclAlltoAll(const void* send, void* recv, size_t count, ncclDataType_t type,
                                   ncclComm_t comm, cudaStream_t stream) {
  return add(Transfer::kAllToAll, send, recv, count, type, ncclSum, 0, comm, stream);
}
NCCL_API ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type,
                                    int root, ncclComm_t comm, cudaStream_t stream) {
  return add(Transfer::kBroadcast, send, recv, count, type, ncclSum, root, comm, stream);
}
NCCL_API ncclResult_t ncclBcast(void* data, size_t count, ncclDataType_t type, int root,
                                ncclComm_t comm, cudaStream_t stream) {
  return add(Transfer::kBroadcast, data, data, count, type, ncclSum, root, comm, stream);
}
NCCL_API ncclResult_t ncclReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                                 ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return add(Transfer::kReduce, send, recv, count, type, op, root, comm, stream);
}
NCCL_API ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer,
                               ncclComm_t comm, cudaStream_t stream) {
  return add(Transfer::kSend, send, nullptr, count, type, ncclSum, peer, comm, stream);
}
NCCL_API ncclResult_t ncclRecv(void* recv, size_t count, ncclDataType_t type, int peer,
                               ncclComm_t comm, cudaStream_t stream) {
  return add(Transfer::kRecv, nullptr, recv, count, type, ncclSum, peer, comm, stream);
}

// The `number`th collective or message from now on fails; 0: none.
NCCL_API void fake_device_refuse_collective(int number) { until_refused = number; }

#define NOT_IMPLEMENTED(name, ...)                  \
  NCCL_API ncclResult_t name(__VA_ARGS__) {         \
    report_wrong_call(#name " is not implemented"); \
    return ncclInvalidUsage;                        \
  }
NOT_IMPLEMENTED(ncclCommInitAll, ncclComm_t*, int, const int*)
NOT_IMPLEMENTED(ncclCommShrink, ncclComm_t, int*, int, ncclComm_t*, ncclConfig_t*, int)
NOT_IMPLEMENTED(ncclCommSplit, ncclComm_t, int, int, ncclComm_t*, ncclConfig_t*)
NOT_IMPLEMENTED(ncclCommWindowDeregister, ncclComm_t, ncclWindow_t)
NOT_IMPLEMENTED(ncclCommWindowRegister, ncclComm_t, void*, size_t, ncclWindow_t*, int)
NOT_IMPLEMENTED(ncclGroupSimulateEnd, ncclSimInfo_t*)
NOT_IMPLEMENTED(ncclMemAlloc, void**, size_t)
NOT_IMPLEMENTED(ncclMemFree, void*)
NOT_IMPLEMENTED(ncclRedOpCreatePreMulSum, ncclRedOp_t*, void*, ncclDataType_t,
                ncclScalarResidence_t, ncclComm_t)
NOT_IMPLEMENTED(ncclRedOpDestroy, ncclRedOp_t, ncclComm_t)
