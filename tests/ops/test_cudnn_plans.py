"""cuDNN compiles attention for an H200 without one: it has kernels for the layout that fastsft asks for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fastsft import _C  # noqa: F401  registers torch.ops.fastsft

# What cudnnBackendGetAttribute(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION) has, with the figures of an H200.
H200 = {
    "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536,
    "multiProcessorCount": 132, "warpSize": 32, "maxSharedMemoryPerBlock": 49152,
    "maxSharedMemoryPerBlockOptin": 232448, "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536,
    "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 0,
    "isTccDriver": 0, "supportCoopLaunch": 1, "totalGlobalMem": 150754820096, "smClockRateKHz": 1980000,
    "memClockRateKHz": 3201000, "l2CacheSize": 62914560, "cudaDeviceId": 0, "deviceVer": 900,
    "driverVer": 13000, "deviceName": "NVIDIA H200",
}  # fmt: skip
# A driver that takes every kernel and launches none, under the name that cuDNN and NVRTC load; and the two
# calls of the CUDA runtime by which cuDNN's frontend looks at the device.
DRIVER = r"""
#include <cuda_runtime_api.h>
#include <cstring>
extern "C" {
int cuDriverGetVersion(int* version) { *version = 13000; return 0; }
#define TAKES(name) int name(void** out) { *out = (void*)8; return 0; }
TAKES(cuLibraryLoadData) TAKES(cuLibraryGetKernel) TAKES(cuLibraryGetModule) TAKES(cuKernelGetFunction)
TAKES(cuModuleLoadData) TAKES(cuModuleLoadDataEx) TAKES(cuModuleGetFunction)
#define DOES(name) int name() { return 0; }
DOES(cuLibraryUnload) DOES(cuModuleUnload) DOES(cuKernelSetAttribute) DOES(cuFuncSetAttribute)
#define IS_STUB(name) int name() { return 34; }
// What else cuDNN asks for when it loads the driver.
IS_STUB(cuCtxGetCurrent) IS_STUB(cuCtxGetLimit) IS_STUB(cuCtxPopCurrent) IS_STUB(cuCtxPushCurrent)
IS_STUB(cuDeviceGet) IS_STUB(cuDeviceGetCount) IS_STUB(cuGetErrorName) IS_STUB(cuGetErrorString)
IS_STUB(cuKernelGetAttribute) IS_STUB(cuLaunchCooperativeKernel) IS_STUB(cuLaunchKernel)
IS_STUB(cuLaunchKernelEx) IS_STUB(cuLibraryLoadFromFile) IS_STUB(cuLinkAddData) IS_STUB(cuLinkComplete)
IS_STUB(cuLinkCreate) IS_STUB(cuLinkDestroy) IS_STUB(cuOccupancyMaxPotentialClusterSize)
IS_STUB(cuStreamGetCtx)
cudaError_t cudaGetDevice(int* device) { *device = 0; return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::memset(properties, 0, sizeof *properties);
  properties->major = 9;
  properties->multiProcessorCount = 132;
  return cudaSuccess;
}
}
"""
ASK = """
import json, sys, torch
from fastsft import _C
device, made = sys.argv[1], []
for shape in json.loads(sys.argv[2]):
    try:
        made.append(torch.ops.fastsft.plan_cudnn_attention(*shape, device))
    except RuntimeError as error:
        made.append(str(error))
print("PLANS " + json.dumps(made))
"""
# Tokens, conversations, longest; heads, key and value heads, head size; window.
FULL_ROWS = (8188, 4, 2047, 32, 32, 128, 0)  # Vicuna-7B


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library to load before all others."""
    if not hasattr(torch.ops.fastsft, "plan_cudnn_attention"):
        pytest.skip("built without CUDA: there is no cuDNN")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.cpp").write_text(DRIVER)
    places = [Path(torch.__file__).parents[1] / "nvidia", Path("/usr/local/cuda")]
    headers = [path.parent for place in places for path in place.glob("**/cuda_runtime_api.h")]
    command = [
        "g++",
        "-shared",
        "-fPIC",
        "-w",
        *(f"-I{path}" for path in headers),
        "driver.cpp",
        "-o",
        "driver.so",
    ]
    subprocess.run([*command, "-Wl,-soname,libcuda.so.1"], cwd=folder, check=True)
    return folder / "driver.so"


def plans(driver: Path, *shapes: tuple[int, ...], device: dict[str, object] = H200) -> list[list[int] | str]:
    """Of each shape scratch of forward and backward, and whether the limit allows it; or what cuDNN said."""
    done = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(device), json.dumps(shapes)],
        env={**os.environ, "LD_PRELOAD": str(driver)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("PLANS "))
    made: list[list[int] | str] = json.loads(line.removeprefix("PLANS "))
    return made


def test_full_rows_and_what_an_old_gpu_says(driver: Path) -> None:
    """Full rows of Vicuna-7B: the queries in float32 are the scratch of backward, and little else."""
    (full,) = plans(driver, FULL_ROWS)
    queries = 4 * 8192 * 32 * 128
    assert isinstance(full, list) and full[0] < 2**20 and queries <= full[1] < 1.05 * queries and full[2]
    (old,) = plans(driver, FULL_ROWS, device={**H200, "deviceVer": 700, "deviceName": "NVIDIA V100"})
    assert isinstance(old, str)


def scratch(shape: tuple[int, ...]) -> int:
    """Bytes by the formula of csrc/ops/attention/attention_choice.h, for shapes of powers of two."""
    _, conversations, longest, heads, keys, size, _ = shape
    padded = (1 << (conversations - 1).bit_length()) * (1 << (longest - 1).bit_length())
    return (8 if heads != keys else 4) * padded * heads * size


@pytest.mark.thorough
@pytest.mark.parametrize(
    "shape",
    [
        (8188, 4, 2047, 28, 4, 128, 0),  # Qwen2.5-7B
        (8000, 16, 1024, 14, 2, 64, 0),  # Qwen2.5-0.5B
        (8000, 8, 1024, 32, 8, 128, 512),  # Mistral's window
        (8000, 8, 1024, 16, 8, 256, 0),  # Gemma's head size
        (8000, 8, 1024, 32, 32, 80, 0),
        (8000, 8, 1024, 40, 40, 96, 0),
        (8188, 16, 2047, 32, 32, 128, 0),  # four times the tokens, as many as the limit has
        (16384, 32, 2047, 32, 8, 128, 0),
        (1500, 16, 120, 32, 8, 128, 0),
    ],
    ids=str,
)
def test_families(driver: Path, shape: tuple[int, ...]) -> None:
    (made,) = plans(driver, shape)
    assert isinstance(made, list), made
    tokens, heads, keys, size = shape[0], *shape[3:6]
    limit = 1.01 * (16 if heads == keys else 32) * tokens * heads * size + 2**20
    assert made[2] and 0.9 * scratch(shape) < made[1] < 1.05 * scratch(shape) + 2**20 and made[1] <= limit


@pytest.mark.thorough
def test_short_conversations_next_to_a_long_one_with_grouped_heads(driver: Path) -> None:
    """One call would take many times the queries as scratch; the calls of the two ranges do not."""
    lengths, heads = [2047, *[150] * 39], (28, 4, 128)
    (together,) = plans(driver, (sum(lengths), 40, 2047, *heads, 0))
    assert isinstance(together, list) and not together[2]
    assert together[1] > 8 * 4 * sum(lengths) * 28 * 128
    _, shapes = torch.ops.fastsft.divide_attention(lengths, *heads)
    ranges = zip(shapes[::2], shapes[1::2], strict=True)
    apart = plans(driver, *((sum(lengths), *shape, *heads, 0) for shape in ranges))
    assert len(apart) == 2 and all(isinstance(made, list) and made[2] for made in apart)
