"""Builds a release wheel for one Python: a core for each torch, with CUDA kernels and without them.

    python3.11 scripts/release/build_wheel.py --torches 2.11 2.12 2.13 2.14 2.15 --out dist

Cores are for x86-64, for systems as old as manylinux_2_28, and for GPUs from 80 on. nvcc of torch's CUDA must
be in PATH. Environments and build trees stay in --work: the same command again goes on. Then try_wheel.py.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from check_wheel import OF_TORCH, check_wheel
from core_files import read_library
from merge_wheels import merge_wheels

ROOT = Path(__file__).resolve().parents[2]
# Symbols of the interpreter, and of the OpenMP runtime that torch brings under a name of its own.
FROM_ELSEWHERE = re.compile(r"_?Py|GOMP_|omp_")


def main() -> int:
    options = _options()
    wheels, faults = [], []
    for torch in options.torches:
        environment = options.work / f"{sys.implementation.cache_tag}-torch{torch}"
        _install_torch(environment, torch)
        wheels.append(_build_cores(environment, "OFF" if options.cpu_only else "ON"))
        faults += _faults_of_links(environment)
        # cuobjdump, which not every toolkit has, comes with torch.
        tools = environment.glob("lib/python*/site-packages/triton/backends/nvidia/bin")
        os.environ["PATH"] = os.pathsep.join([os.environ["PATH"], *map(str, tools)])
    wheel = merge_wheels(wheels, options.out)
    faults += check_wheel(wheel)
    print(*faults, f"{wheel}: {wheel.stat().st_size / 2**20:.1f} MB, {len(faults)} faults", sep="\n")
    return min(len(faults), 1)


def foreign_archives(linker_map: str, of_compiler: Path) -> list[str]:
    """Faults of a link: archives of a compiler that come from another folder than its libgcc.a."""
    taken = set(re.findall(r"^LOAD (\S+/lib(?:gcc|gcc_eh|stdc\+\+)\.a)$", linker_map, re.MULTILINE))
    foreign = sorted(path for path in taken if Path(path).resolve().parent != of_compiler.resolve().parent)
    faults = [
        f"expected archives of {of_compiler.parent} alone, got {path}; leave its folder out of the link"
        for path in foreign
    ]
    if not any(path.endswith("/libgcc.a") for path in taken):
        faults.append("expected libgcc.a in the linker map, got none; link by g++ with -Wl,-Map")
    return faults


def missing_symbols(core: Path, libraries: list[Path]) -> list[str]:
    """Symbols of a core that neither these libraries, nor the system, nor the interpreter have."""
    there = {symbol for library in libraries for symbol in read_library(library).defined}
    wanted = read_library(core).undefined - there
    return sorted(symbol for symbol in wanted if not FROM_ELSEWHERE.match(symbol))


def _install_torch(environment: Path, torch: str) -> None:
    if (environment / "ready").exists():
        return
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]["requires"]
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    _run(environment, "pip", "install", f"torch=={torch}.*", "cmake>=4", "ninja", *requires)
    (environment / "ready").touch()


def _build_cores(environment: Path, cuda: str) -> Path:
    folder = environment / "wheel"
    settings = {
        "build-dir": environment / "build",
        "cmake.define.FASTSFT_CUDA": cuda,
        "cmake.define.FASTSFT_RELEASE": "ON",
    }
    options = [f"--config-settings={name}={value}" for name, value in settings.items()]
    for old in folder.glob("*.whl"):
        old.unlink()
    command = ("pip", "wheel", "--verbose", "--no-build-isolation", "--no-deps", f"--wheel-dir={folder}")
    _run(environment, *command, *options, str(ROOT))
    (wheel,) = folder.glob("*.whl")
    return wheel


def _faults_of_links(environment: Path) -> Iterator[str]:
    build = environment / "build"
    compiler = re.search(
        r"^CMAKE_CXX_COMPILER:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE
    )
    command = [compiler[1] if compiler else "c++", "-print-libgcc-file-name"]
    libgcc = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    for linker_map in sorted(build.glob("*.map")):
        for fault in foreign_archives(linker_map.read_text(errors="replace"), Path(libgcc)):
            yield f"{linker_map}: {fault}"
    (torch,) = environment.glob("lib/python*/site-packages/torch/lib")
    (core,) = [*build.glob("csrc/without_cuda/_C*.so")] or build.glob("csrc/_C*.so")
    if missing := missing_symbols(core, [torch / name for name in sorted(OF_TORCH)]):
        yield f"{core}: expected symbols of a torch without CUDA, got {', '.join(missing)}"


def _run(environment: Path, *command: str) -> None:
    paths = {"VIRTUAL_ENV": str(environment), "PATH": f"{environment / 'bin'}:{os.environ['PATH']}"}
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LIBRARY_PATH")}
    subprocess.run([str(environment / "bin" / command[0]), *command[1:]], env=kept | paths, check=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--torches", nargs="+", required=True, help="minor releases: 2.11 2.12")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "release", help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="default: %(default)s")
    parser.add_argument("--cpu_only", action="store_true", help="leave out the cores with CUDA kernels")
    options = parser.parse_args()
    options.work = options.work.absolute()
    return options


if __name__ == "__main__":
    sys.exit(main())
