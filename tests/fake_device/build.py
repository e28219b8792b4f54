"""Builds the fake device: its libraries, by g++, kept by the content of what they are made of.

Kernels are the objects of tests/cuda_on_cpu. Processes that build at the same time wait for each other.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from cuda_on_cpu import build as emulation
from cuda_on_cpu.build import TORCH, Unit, compiled, digest_of, locked, torch_flags
from fastsft import _C

HERE = Path(__file__).parent
TESTS = HERE.parent
CACHE = emulation.CACHE
WHEELS = TORCH.parent / "nvidia"
FLAGS = ("-std=c++20", "-g1", "-fPIC", "-fvisibility=hidden", "-Wall", "-I", str(HERE), "-I", str(TESTS))
LINK_TORCH = (f"-L{TORCH / 'lib'}", f"-Wl,-rpath,{TORCH / 'lib'}")
KINDS = ("plain", "trace")
HEADERS = ("cuda_runtime_api.h", "cublasLt.h", "nccl.h", "cudnn.h")


def missing() -> str | None:
    """Return why the fake device cannot be built here; None if it can."""
    if not _C.with_cuda:
        return "fastsft is built without CUDA"
    if reason := emulation.missing():
        return reason
    absent = [name for name in HEADERS if not header_folder(name)]
    return f"no {', '.join(absent)}" if absent else None


@cache
def header_folder(name: str) -> Path | None:
    """Return the folder of a header of NVIDIA's, of the wheels that torch brings or of a toolkit."""
    wheels = (WHEELS / name / "include" for name in ("cu13", "nccl", "cudnn"))
    roots = (*wheels, Path("/usr/local/cuda/include"), Path("/usr/include"))
    return next((root for root in roots if (root / name).exists()), None)


def nvidia_flags() -> tuple[str, ...]:
    folders = dict.fromkeys(header_folder(name) for name in HEADERS)
    return tuple(flag for folder in folders for flag in ("-isystem", str(folder)))


def folder(kind: str) -> Path:
    """Build what is not built yet and return the folder of the libraries.

    kind: "plain", or "trace" with kernels that report the bytes that they touch, for races and counts.
    """
    assert kind in KINDS, kind
    CACHE.mkdir(parents=True, exist_ok=True)
    with locked(CACHE / "lock"):
        groups = {
            "libfake_device.so": list(device_units()),
            "libfake_device_ops.so": list(op_units()),
            "libfake_device_kernels.so": list(kernel_units(kind)),
        }
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            objects = {name: list(pool.map(compiled, units)) for name, units in groups.items()}
        return linked(objects)


def device_units() -> Iterator[Unit]:
    for source in sorted(path for folder in ("device", "nccl") for path in (HERE / folder).glob("*.cpp")):
        if source.name != "libcuda.cpp":
            yield unit(source, ("-O1", *nvidia_flags()), headers_of(source.parent))
    for folder in (HERE / "cudnn", TESTS / "cublas_lt"):
        for source in sorted(folder.glob("*.cpp")):
            yield unit(source, ("-O3", *nvidia_flags()), headers_of(folder))


def op_units() -> Iterator[Unit]:
    for source in sorted((HERE / "aten").glob("*.cpp")):
        yield unit(source, ("-O1", "-g0", *torch_flags(), *nvidia_flags()), headers_of(source.parent))


def headers_of(folder: Path) -> list[Path]:
    """The headers that a source in `folder` may include."""
    shared = (HERE / "device", TESTS / "cublas_lt")
    return sorted({path for each in (folder, *shared) for path in each.glob("*.h")})


def kernel_units(kind: str) -> Iterator[Unit]:
    """The emulation's units without its own ops and products."""
    for each in emulation.all_units(kind, {}):
        if each.name == "race_trace.cpp" and kind == "trace":
            source = HERE / "kernels" / "touched_bytes.cpp"
            yield unit(source, ("-O2", *nvidia_flags(), "-I", str(emulation.HERE)), fiber_headers())
        elif each.name not in ("glue.cpp", "cublas_lt.cpp", "product.cpp"):
            yield each
    source = HERE / "kernels" / "add_kernels.cpp"
    yield unit(source, ("-O1", *nvidia_flags(), "-I", str(emulation.HERE)), fiber_headers())


def fiber_headers() -> list[Path]:
    return [*(emulation.HERE / "fibers").glob("*.h"), HERE / "device" / "device.h"]


def unit(source: Path, flags: tuple[str, ...], headers: list[Path]) -> Unit:
    if source.parent.name in ("device", "nccl", "cudnn"):
        flags = (*flags, "-I", str(source.parent))
    return Unit(source.name, source.read_text(), (*FLAGS, *flags), digest_of(headers))


def linked(objects: dict[str, list[Path]]) -> Path:
    driver = HERE / "device" / "libcuda.cpp"
    key = hashlib.sha256(repr(sorted(objects.items())).encode() + driver.read_bytes()).hexdigest()[:16]
    out = CACHE / f"fake_device_{key}"
    if out.exists():
        return out
    partial = CACHE / f"fake_device_{key}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    more = {
        "libfake_device.so": ("-pthread",),
        "libfake_device_ops.so": ("-lfake_device", "-lc10", "-ltorch_cpu", "-lc10_cuda", "-ltorch_cuda"),
        "libfake_device_kernels.so": ("-lfake_device", "-lc10", "-ltorch_cpu", "-Wl,--no-undefined"),
    }
    own = (f"-L{partial}", "-Wl,-rpath,$ORIGIN", *LINK_TORCH)
    for name, made in objects.items():
        link(partial / name, *map(str, made), *own, *more[name])
    link(partial / "libcuda.so.1", "-fPIC", "-Wl,-soname,libcuda.so.1", str(driver))
    return partial.rename(out)


def link(out: Path, *arguments: str) -> None:
    subprocess.run(["g++", "-shared", *arguments, "-o", str(out)], check=True)


if __name__ == "__main__":
    import sys

    print(folder(sys.argv[1] if len(sys.argv) > 1 else "plain"))
