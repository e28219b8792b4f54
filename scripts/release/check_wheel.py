"""Checks a release wheel without installing it; prints each fault as `where: expected, got; the way out`.

    python scripts/release/check_wheel.py dist/fastsft-0.1.0-cp311-cp311-manylinux_2_28_x86_64.whl

The limits of versions are those of manylinux_2_28 (auditwheel's manylinux-policy.json). auditwheel itself
does not know the libraries of torch, which are listed here. Checks of an installed wheel are in
try_wheel.py, those of a build tree in build_wheel.py.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from core_files import Library, cuda_code, read_library
from merge_wheels import CORES, PLATFORM, core_names, info_folder, read_wheel, torch_requirement

NEWEST = {"GLIBC": "2.28", "GLIBCXX": "3.4.24", "CXXABI": "1.3.11", "GCC": "7.0.0"}
OF_SYSTEM = {
    *("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2"),
    *("libgcc_s.so.1", "libstdc++.so.6"),
}
OF_TORCH = {"libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so"}
OF_TORCH_WITH_CUDA = {"libc10_cuda.so", "libtorch_cuda.so", "libcudnn.so.9"}
RUNPATH = "$ORIGIN/../../../torch/lib"
GPUS = {"sm_80", "sm_90", "sm_100", "sm_120", "compute_120"}  # compute_: PTX, for newer ones
MOST_MEGABYTES = 12  # for each release of torch


def main() -> int:
    faults = [f"{path}: {fault}" for path in sys.argv[1:] for fault in check_wheel(Path(path))]
    print("\n".join(faults or ["no faults"]))
    return min(len(faults), 1)


def check_wheel(path: Path) -> list[str]:
    files = read_wheel(path)
    faults = [*_faults_of_metadata(path.name, files), *_faults_of_size(path, core_names(files))]
    with tempfile.TemporaryDirectory() as folder:
        for name in sorted(each for each in files if re.search(r"\.so(\.|$)", each)):
            if not re.fullmatch(rf"{CORES}[^/]+/_C\.[\w-]+\.so", name):
                faults.append(f"{name}: expected libraries in {CORES} alone; leave it out")
                continue
            library = Path(folder, "core.so")
            library.write_bytes(files[name])
            core = name.split("/")[2]
            faults += [f"{name}: {fault}" for fault in check_core(library, core)]
    return faults


def check_core(path: Path, core: str, gpus_of: Callable[[Path], set[str]] = cuda_code) -> Iterator[str]:
    """Yield the faults of a core, whose folder's name says for which torch it is: torch2.11-cuda13."""
    library, (_, cuda) = read_library(path), core.split("-")
    yield from _faults_of_versions(library)
    yield from _faults_of_libraries(library, cuda)
    gpus = GPUS if cuda != "cpu" else set()
    if (found := gpus_of(path)) != gpus:
        yield (
            f"expected code for {sorted(gpus)}, got {sorted(found)}; see FASTSFT_CUDA_ARCHITECTURES in "
            "cmake/FastsftCuda.cmake"
        )


def _faults_of_versions(library: Library) -> Iterator[str]:
    for file, version in library.versions:
        kind, _, number = version.partition("_")
        if file in OF_SYSTEM and (kind not in NEWEST or _numbers(number) > _numbers(NEWEST[kind])):
            limit = f"{kind}_{NEWEST[kind]}" if kind in NEWEST else "those of manylinux_2_28"
            yield (
                f"expected symbols of at most {limit}, got {version} of {file}; give cmake/older_system.c a "
                "function in its place"
            )


def _faults_of_libraries(library: Library, cuda: str) -> Iterator[str]:
    allowed = OF_SYSTEM | OF_TORCH
    if cuda != "cpu":
        major = cuda.removeprefix("cuda")
        allowed |= OF_TORCH_WITH_CUDA | {f"libcudart.so.{major}", f"libcublasLt.so.{major}"}
    for file in library.needed:
        if file not in allowed:
            yield f"expected libraries of the system and of torch ({cuda}), got {file}; leave it out"
    if library.runpath != (RUNPATH,):
        found = ":".join(library.runpath) or "none"
        yield f"expected the run path {RUNPATH}, got {found}; see cmake/FastsftRelease.cmake"


def _faults_of_metadata(name: str, files: dict[str, bytes]) -> Iterator[str]:
    info = info_folder(files)
    if not name.endswith(f"-{PLATFORM}.whl") or f"-{PLATFORM}\n".encode() not in files[f"{info}/WHEEL"]:
        yield f"expected a wheel for {PLATFORM} by name and by WHEEL, got {name}; make it by merge_wheels"
    cores = core_names(files)
    if not cores:
        yield f"expected cores in {CORES}, got none; build with FASTSFT_RELEASE=ON"
        return
    wanted, asked = (
        torch_requirement(cores),
        re.findall(rb"^Requires-Dist: (torch\b.*)$", files[f"{info}/METADATA"], re.M),
    )
    if [wanted.encode()] != asked:
        there = ", ".join(cores)
        yield f"expected the requirement {wanted}, as there are {there}, got {asked}; make it by merge_wheels"
    for release in {core.split("-")[0] for core in cores}:
        if f"{release}-cpu" not in cores:
            yield f"expected a core {release}-cpu next to {', '.join(cores)}; build it with FASTSFT_CUDA=OFF"


def _faults_of_size(path: Path, cores: list[str]) -> Iterator[str]:
    releases = len({core.split("-")[0] for core in cores})
    size, limit = path.stat().st_size / 2**20, MOST_MEGABYTES * max(releases, 1)
    if size > limit:
        yield f"expected at most {limit} MB for {releases} releases of torch, got {size:.1f}; look inside"


def _numbers(version: str) -> list[int]:
    """Of a version; one that is no number is newer than all others."""
    parts = version.split(".")
    return [int(part) for part in parts] if all(map(str.isdecimal, parts)) else [sys.maxsize]


if __name__ == "__main__":
    sys.exit(main())
