"""Compiles the CUDA kernels of csrc/ops for the CPU, with the ops that launch them, to one library.

Objects are kept by the content of what they are made of, under build/cuda_on_cpu of the checkout. Processes
that build at the same time wait for each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from cuda_on_cpu.translate import translate

HERE = Path(__file__).parent
CUBLAS_LT = HERE.parent / "cublas_lt"
ROOT = HERE.parents[1]
CSRC = ROOT / "csrc"
CACHE = ROOT / "build" / "cuda_on_cpu"
TORCH = Path(torch.__file__).parent

COMMON = ["-std=c++20", "-fPIC", "-g1", "-Wall", "-Wno-unknown-pragmas", "-ffp-contract=off"]
COMMON += ["-Dfastsft=fastsft_on_cpu"]  # next to the product's ops of the same names
# What kernels are compiled with, and the fibers below them. -fsanitize=thread calls a function before each
# access; race_trace.cpp has these functions.
KERNELS = {
    "plain": ["-O1"],
    "trace": ["-O1", "-fsanitize=thread"],
    "sanitized": ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
}
FIBERS = {**KERNELS, "plain": ["-O2"], "trace": ["-O2", "-DCUDA_ON_CPU_TRACE"]}
# Flash attention and cuDNN are not ours. Products have a unit of their own.
FOREIGN = ("gemm/", "attention/flash_attention_cuda.cpp", "attention/cudnn_")


def missing() -> str | None:
    """Why kernels cannot be compiled here; None when they can."""
    if platform.machine() != "x86_64":
        return f"the fibers switch stacks of x86-64, this is {platform.machine()}"
    return None if shutil.which("g++") else "no g++"


@dataclass(frozen=True)
class Unit:
    """One translation unit: its text, flags, and what else decides its object."""

    name: str
    text: str
    flags: tuple[str, ...]
    inputs: str

    @property
    def key(self) -> str:
        parts = [compiler(), self.text, *self.flags, self.inputs]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@cache
def compiler() -> str:
    return subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout


def digest_of(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(str(path.name).encode() + path.read_bytes())
    return digest.hexdigest()


def library(kind: str, changes: Mapping[str, str] | None = None) -> Path:
    """The library of build `kind`; `changes` gives other texts to files named below csrc."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with locked(CACHE / "lock"):
        units = list(all_units(kind, dict(changes or {})))
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            objects = list(pool.map(compiled, units))
        return linked(kind, objects)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def all_units(kind: str, changes: dict[str, str]) -> Iterator[Unit]:
    """First those that take longest."""
    text = {
        str(path.relative_to(CSRC)): path.read_text()
        for path in CSRC.rglob("*")
        if path.suffix in {".h", ".cuh", ".cu", ".cpp"}
    }
    text.update(changes)
    headers = translated_headers(text)
    own = [*HERE.rglob("*.h"), *CUBLAS_LT.glob("*.h")]
    inputs = digest_of([*(CSRC / "ops").rglob("*.h"), *(CSRC / "core").rglob("*.h"), *own])
    data = [*(CSRC / "data").glob("attention_ranges.*")]
    cpp = digest_of([*(CSRC / "ops").rglob("*.cpp"), *(CSRC / "core").rglob("*.cpp"), *data])
    include = ("-I", str(HERE / "shim"), "-I", str(HERE), "-I", str(HERE.parent), "-I", str(CSRC))
    yield Unit("glue.cpp", glue(text), (*COMMON, "-O0", "-g0", *torch_flags(), *include), inputs + cpp)
    inputs += headers.name
    include = ("-I", str(headers), *include)
    for name, source in text.items():
        if name.endswith(".cu"):
            yield Unit(
                name, with_headers(translate(source, name)), (*COMMON, *KERNELS[kind], *include), inputs
            )
    for name in ("ops/cuda/access.cpp", "ops/linear_cross_entropy/logits_workspace.cpp"):
        yield Unit(name, text[name], (*COMMON, *torch_flags(), "-O1", *include), inputs)  # for the host
    for path in sorted((HERE / "fibers").glob("*.cpp")):
        yield Unit(path.name, path.read_text(), (*COMMON, *FIBERS[kind], *include), inputs)
    for path in sorted(CUBLAS_LT.glob("*.cpp")):
        flags = (*COMMON, "-O3", "-I", str(HERE / "shim"), "-I", str(HERE), "-I", str(HERE.parent))
        yield Unit(path.name, path.read_text(), flags, inputs)


def with_headers(kernels: str) -> str:
    return f"#include <cuda_runtime_api.h>\n{kernels}"


def translated_headers(text: dict[str, str]) -> Path:
    """A folder of the .cuh files, translated."""
    made = {name: translate(source, name) for name, source in text.items() if name.endswith(".cuh")}
    folder = CACHE / ("headers-" + hashlib.sha256(repr(sorted(made.items())).encode()).hexdigest()[:16])
    for name, source in made.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(source)
    return folder


def torch_flags() -> tuple[str, ...]:
    api = TORCH / "include" / "torch" / "csrc" / "api" / "include"
    return ("-isystem", str(TORCH / "include"), "-isystem", str(api))


def glue(text: dict[str, str]) -> str:
    """The ops that launch the kernels, products; their checks and schemas, with what replaces the CPU's ops.

    In one unit: the headers of torch take most of its time.
    """
    launching = sorted(n for n in text if n.startswith("ops/") and n.endswith("_cuda.cpp"))
    launching = [n for n in launching if not n.removeprefix("ops/").startswith(FOREIGN)]
    ops = "".join(f'#include "{name}"\n' for name in [*launching, "ops/cuda/arguments.cpp"])
    on_cpu = (HERE / "glue" / "ops_on_cpu.cpp").read_text().replace('#include "cuda_ops.inc"\n', ops)
    schemas = [name.replace("_cuda.cpp", ".cpp") for name in launching]
    others = [
        "ops/gemm/gemm.cpp",
        "ops/gemm/scaled_gemm.cpp",
        "ops/gemm/tuned_gemms.cpp",
        "ops/schema.cpp",
        "ops/dynamic_levels.cpp",
        "data/attention_ranges.cpp",
    ]
    core = ["core/trace.cpp"]
    included = "".join(f'#include "{name}"\n' for name in [*schemas, *others, *core])
    replacing = (HERE / "glue" / "replace_cpu_ops.cpp").read_text()
    return "\n".join([on_cpu, *products(text), replacing, included])


def products(text: dict[str, str]) -> Iterator[str]:
    """Products as on a GPU, with the cuBLASLt of tests/cublas_lt.

    A GPU's memory begins at multiples of 512 bytes, the CPU's at multiples of 64, some by chance at more.
    """
    glue = [(HERE / "glue" / name).read_text() for name in ("run_products.cpp", "gemm_tuning.cpp")]
    yield glue[0]
    for name in sorted(n for n in text if n.startswith("ops/gemm/") and n.endswith("_cuda.cpp")):
        source = text[name].replace("_IMPL(fastsft, CUDA,", "_IMPL(fastsft, CPU,")
        yield source.replace("= alignment_of(", "= at_most_64_of(")
    yield glue[1]


def compiled(unit: Unit) -> Path:
    """The unit's object, from the cache where it is."""
    out = CACHE / f"{unit.key}.o"
    if out.exists():
        out.touch()
        return out
    source = CACHE / f"{unit.key}.cpp"
    source.write_text(unit.text)
    partial = out.with_suffix(".partial")
    command = ["g++", *unit.flags, "-c", str(source), "-o", str(partial)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{unit.name} does not compile:\n{done.stderr[-6000:]}")
    if ours := [line for line in done.stderr.splitlines() if "warning:" in line]:
        raise RuntimeError(f"{unit.name} gives warnings:\n" + "\n".join(ours))
    source.unlink()
    return partial.rename(out)


def linked(kind: str, objects: list[Path]) -> Path:
    name = hashlib.sha256("".join(map(str, objects)).encode()).hexdigest()[:32]
    out = CACHE / f"cuda_on_cpu_{kind}_{name}.so"
    if not out.exists():
        partial = out.with_suffix(".partial")
        flags = ["-fsanitize=address,undefined"] if kind == "sanitized" else ["-Wl,--no-undefined"]
        libraries = ["-L", str(TORCH / "lib"), "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{TORCH / 'lib'}"]
        command = ["g++", "-shared", *flags, *map(str, objects), *libraries, "-o", str(partial)]
        subprocess.run(command, check=True)
        partial.rename(out)
    return out
