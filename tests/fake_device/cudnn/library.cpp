// The calls into cuDNN that fastsft and libtorch make through its frontend. cudnnGetVersion and the
// texts of errors are the real library's.
#include <cstdlib>

#include "device/device.h"
#include "graph.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

namespace fake_cudnn {
namespace {

constexpr int64_t kDirtyBytes = 256;  // of scratch that each plan asks for, used or not

Descriptor& of(cudnnBackendDescriptor_t descriptor) {
  return *static_cast<Descriptor*>(descriptor);
}

// Runs `work`; reports its error as a call that no cuDNN takes, or that is not implemented.
template <typename Work>
cudnnStatus_t guarded(const char* call, const Work& work) {
  fake_device::count_call(call);
  try {
    work();
    return CUDNN_STATUS_SUCCESS;
  } catch (const std::exception& error) {
    fake_device::report_wrong_call(std::string(call) + ": " + error.what());
    return CUDNN_STATUS_NOT_SUPPORTED;
  }
}

size_t element_bytes(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
    case CUDNN_TYPE_HANDLE:
      return 8;
    default:
      return 4;  // enumerations, float, int32
  }
}

// The attribute from which a descriptor takes its graph; none for those that describe one.
cudnnBackendAttributeName_t source_of(cudnnBackendDescriptorType_t type) {
  switch (type) {
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      return CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH;
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
      return CUDNN_ATTR_ENGINE_OPERATION_GRAPH;
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
      return CUDNN_ATTR_ENGINECFG_ENGINE;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
      return CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG;
    default:
      return static_cast<cudnnBackendAttributeName_t>(-1);
  }
}

void finalize(Descriptor& descriptor) {
  if (is_operation(descriptor.type)) {
    descriptor.step = std::make_shared<const Step>(step_of(descriptor));
  } else if (descriptor.type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {
    descriptor.graph = std::make_shared<const Graph>(graph_of(descriptor));
  } else if (const Descriptor* from = descriptor.descriptor(source_of(descriptor.type))) {
    descriptor.graph = from->graph;
  }
  if (descriptor.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
    fake_device::count_call("cudnn plan");
  }
  descriptor.finalized = true;
}

// Gives `descriptor`, if there is one, the graph of `from`: one engine, one configuration.
void hand_on(const Descriptor& from, int64_t* count, void* descriptors) {
  if (count != nullptr) *count = 1;
  if (descriptors == nullptr) return;
  Descriptor& to = of(*static_cast<cudnnBackendDescriptor_t*>(descriptors));
  to.graph = from.graph;
  to.finalized = true;
}

void get(const Descriptor& from, cudnnBackendAttributeName_t name, int64_t* count, void* to) {
  const auto answer = [&](auto value) {
    if (count != nullptr) *count = 1;
    if (to != nullptr) std::memcpy(to, &value, sizeof value);
  };
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
    case CUDNN_ATTR_ENGINECFG_ENGINE:
    case CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG:
      return hand_on(from, count, to);
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
    case CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE:
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES:
      if (count != nullptr) *count = 0;
      return;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
      return answer(int64_t{0});
    case CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED:
      return answer(int32_t{0});
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT:
      return answer(int64_t{1});
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE:
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      return answer(from.graph->workspace() + kDirtyBytes);
    default:
      break;
  }
  const auto found = from.values.find(name);
  if (found == from.values.end()) {
    throw std::runtime_error("attribute " + std::to_string(name) + " is not implemented");
  }
  if (count != nullptr) *count = found->second.count;
  if (to != nullptr) std::memcpy(to, found->second.bytes.data(), found->second.bytes.size());
}

// A call's memory. Numbers of the host are copied: they may be gone when the call is computed.
struct Call {
  std::shared_ptr<const Graph> graph;
  Pointers pointers;
  std::map<int64_t, std::vector<char>> numbers;
  void* workspace = nullptr;
};

std::shared_ptr<Call> call_of(const Descriptor& plan, const Descriptor& pack) {
  auto call = std::make_shared<Call>(Call{.graph = plan.graph});
  const auto uids = pack.list<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.list<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  for (size_t i = 0; i < uids.size(); ++i) call->pointers[uids[i]] = pointers.at(i);
  for (const auto& [uid, tensor] : call->graph->tensors) {
    if (tensor.is_virtual) continue;
    const auto found = call->pointers.find(uid);
    if (found == call->pointers.end()) {
      throw std::runtime_error("tensor " + std::to_string(uid) + " has no memory");
    }
    if (tensor.by_value) {
      const auto* const number = static_cast<const char*>(found->second);
      auto& copy = call->numbers[uid];
      copy.assign(number, number + bytes_of(tensor.dtype));
      found->second = copy.data();
    } else if (!fake_device::is_device_memory(found->second)) {
      throw std::runtime_error("tensor " + std::to_string(uid) + " is not in the device's memory");
    }
  }
  call->workspace = pack.one<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  if (!fake_device::is_device_memory(call->workspace)) {
    throw std::runtime_error("the workspace is not in the device's memory");
  }
  return call;
}

void execute(cudaStream_t stream, const Descriptor& plan, const Descriptor& pack) {
  const auto call = call_of(plan, pack);
  const auto scratch = static_cast<size_t>(call->graph->workspace() + kDirtyBytes);
  fake_device::enqueue(stream, "cudnn graph", {fake_device::writes(call->workspace, scratch)},
                       [call] {
                         compute(*call->graph, call->pointers);
                         return true;
                       });
}

}  // namespace
}  // namespace fake_cudnn

using namespace fake_cudnn;

EXPORTED cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}
EXPORTED cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
EXPORTED cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
EXPORTED cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  *stream = handle->stream;
  return CUDNN_STATUS_SUCCESS;
}
EXPORTED cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                                    cudnnBackendDescriptor_t* descriptor) {
  *descriptor = new Descriptor{.type = type};
  return CUDNN_STATUS_SUCCESS;
}
EXPORTED cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete static_cast<Descriptor*>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}
EXPORTED cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                                cudnnBackendAttributeName_t name,
                                                cudnnBackendAttributeType_t type, int64_t count,
                                                const void* values) {
  const auto* const bytes = static_cast<const char*>(values);
  const size_t size = static_cast<size_t>(count) * element_bytes(type);
  of(descriptor).values[name] = {type, count, std::vector<char>(bytes, bytes + size)};
  return CUDNN_STATUS_SUCCESS;
}
EXPORTED cudnnStatus_t cudnnBackendGetAttribute(const cudnnBackendDescriptor_t descriptor,
                                                cudnnBackendAttributeName_t name,
                                                cudnnBackendAttributeType_t, int64_t,
                                                int64_t* count, void* values) {
  return guarded(__func__, [&] { get(of(descriptor), name, count, values); });
}
EXPORTED cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  static const bool refuses = std::getenv("FAKE_DEVICE_REFUSE_CUDNN") != nullptr;
  if (refuses && of(descriptor).type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) {
    return CUDNN_STATUS_NOT_SUPPORTED;  // as for a graph that no engine computes
  }
  return guarded(__func__, [&] { finalize(of(descriptor)); });
}
EXPORTED cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                           cudnnBackendDescriptor_t pack) {
  return guarded(__func__, [&] { execute(handle->stream, of(plan), of(pack)); });
}
