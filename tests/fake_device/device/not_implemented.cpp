// Calls of libcudart that torch imports and the fake does not implement: memory pools, graphs,
// inter-process handles, symbols. A call is an error that fails the test.
#include "state.h"

using namespace fake_device;

#define NOT_IMPLEMENTED(name, ...)                  \
  EXPORTED cudaError_t name(__VA_ARGS__) {          \
    report_wrong_call(#name " is not implemented"); \
    return returned(cudaErrorNotSupported);         \
  }

NOT_IMPLEMENTED(cudaDeviceGetDefaultMemPool, cudaMemPool_t*, int)
NOT_IMPLEMENTED(cudaFreeAsync, void*, cudaStream_t)
NOT_IMPLEMENTED(cudaGetSymbolAddress, void**, const void*)
NOT_IMPLEMENTED(cudaGraphDebugDotPrint, cudaGraph_t, const char*, unsigned)
NOT_IMPLEMENTED(cudaGraphDestroy, cudaGraph_t)
NOT_IMPLEMENTED(cudaGraphExecDestroy, cudaGraphExec_t)
NOT_IMPLEMENTED(cudaGraphGetNodes, cudaGraph_t, cudaGraphNode_t*, size_t*)
NOT_IMPLEMENTED(cudaGraphInstantiateWithFlags, cudaGraphExec_t*, cudaGraph_t, unsigned long long)
NOT_IMPLEMENTED(cudaGraphLaunch, cudaGraphExec_t, cudaStream_t)
NOT_IMPLEMENTED(cudaGraphNodeGetDependencies, cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*,
                size_t*)
NOT_IMPLEMENTED(cudaIpcCloseMemHandle, void*)
NOT_IMPLEMENTED(cudaIpcGetEventHandle, cudaIpcEventHandle_t*, cudaEvent_t)
NOT_IMPLEMENTED(cudaIpcGetMemHandle, cudaIpcMemHandle_t*, void*)
NOT_IMPLEMENTED(cudaIpcOpenEventHandle, cudaEvent_t*, cudaIpcEventHandle_t)
NOT_IMPLEMENTED(cudaIpcOpenMemHandle, void**, cudaIpcMemHandle_t, unsigned)
NOT_IMPLEMENTED(cudaMallocAsync, void**, size_t, cudaStream_t)
NOT_IMPLEMENTED(cudaMemPoolGetAttribute, cudaMemPool_t, cudaMemPoolAttr, void*)
NOT_IMPLEMENTED(cudaMemPoolSetAccess, cudaMemPool_t, const cudaMemAccessDesc*, size_t)
NOT_IMPLEMENTED(cudaMemPoolSetAttribute, cudaMemPool_t, cudaMemPoolAttr, void*)
NOT_IMPLEMENTED(cudaMemPoolTrimTo, cudaMemPool_t, size_t)
NOT_IMPLEMENTED(cudaMemcpyToSymbol, const void*, const void*, size_t, size_t, cudaMemcpyKind)
NOT_IMPLEMENTED(cudaStreamAddCallback, cudaStream_t, cudaStreamCallback_t, void*, unsigned)
NOT_IMPLEMENTED(cudaStreamBeginCapture, cudaStream_t, cudaStreamCaptureMode)
NOT_IMPLEMENTED(cudaStreamEndCapture, cudaStream_t, cudaGraph_t*)

// Nothing is ever captured into a graph.
EXPORTED cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return returned(cudaSuccess);
}
EXPORTED cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status,
                                              unsigned long long* id, cudaGraph_t*,
                                              const cudaGraphNode_t**, const cudaGraphEdgeData**,
                                              size_t*) {
  *status = cudaStreamCaptureStatusNone;
  if (id) *id = 0;
  return returned(cudaSuccess);
}
EXPORTED cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return returned(cudaSuccess);
}
