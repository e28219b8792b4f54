"""Installs a release wheel into a new environment, and runs it there with no compiler in PATH.

    python scripts/release/try_wheel.py dist/fastsft-*.whl --torch 2.11.0 --ordinary venv/bin/python

fastsft is installed next to a torch that is there already and must stay. `fastsft doctor` and `fastsft
demo` follow, with every symbol bound at once. --ordinary names an interpreter whose fastsft was built from
source with the same torch; three training steps of both must give the same bits.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "nvcc", "cmake", "ninja")
BITS = ("trained/model.safetensors", "untrained/model.safetensors", "trained/trainer_state.json")


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="fastsft-wheel-") as folder:
        home = Path(folder)
        try:
            fresh = Environment(home / "venv", options.torch, options.index)
            _install(fresh, options.wheel.resolve())
            _show("fastsft doctor", fresh.run("fastsft", "doctor"))
            _show("fastsft demo", fresh.run("fastsft", "demo", "--output_dir", str(home / "demo")))
            if options.ordinary:
                _compare(fresh, options.ordinary.absolute(), home)
        except (subprocess.CalledProcessError, ValueError) as error:
            print(
                error, *filter(None, [getattr(error, "stdout", ""), getattr(error, "stderr", "")]), sep="\n"
            )
            return 1
    return 0


class Environment:
    """A virtual environment with a torch, in which nothing can be compiled."""

    def __init__(self, folder: Path, torch: str, index: str | None) -> None:
        self.programs = folder / "bin"
        self.seconds = (0.0, 0.0)  # of the last command: by the wall, and of the processor
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        self.run("pip", "install", "--quiet", f"torch=={torch}", *(["--index-url", index] if index else []))

    def run(self, *command: str) -> str:
        """Run a program of the environment; return what it printed."""
        program = self.programs / command[0]
        kept = {
            name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "SSL_", "HF_", "OMP_"))
        }
        variables = {"PATH": str(self.programs), "HOME": str(self.programs.parent), "LD_BIND_NOW": "1"}
        start, used = time.perf_counter(), _processor_seconds()
        done = subprocess.run(
            [str(program), *command[1:]], env=kept | variables, cwd=self.programs.parent,
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        self.seconds = (time.perf_counter() - start, _processor_seconds() - used)
        return done.stdout + done.stderr

    def torch(self) -> str:
        return self.run("python", "-c", "import importlib.metadata as m; print(m.version('torch'))").strip()


def differences(one: Path, other: Path, names: tuple[str, ...] = BITS) -> list[str]:
    """The files of two demos whose bits differ. Of trainer_state.json only the history counts."""
    return [name for name in names if _bits(one / name) != _bits(other / name)]


def _install(fresh: Environment, wheel: Path) -> None:
    before = fresh.torch()
    if found := [name for name in COMPILERS if shutil.which(name, path=str(fresh.programs))]:
        raise ValueError(f"expected an environment without a compiler, found {', '.join(found)} in PATH")
    fresh.run("pip", "install", "--quiet", str(wheel))
    wall, processor = fresh.seconds
    print(f"pip install {wheel.name}: {wall:.1f} s, {processor:.1f} s of the processor, torch {before}")
    if (after := fresh.torch()) != before:
        raise ValueError(
            f"expected torch {before} to stay, got {after}; see torch_requirement in merge_wheels.py"
        )
    core = fresh.run(
        "python", "-c", "from fastsft import _C; print(_C.__file__, _C.with_cuda, _C.cuda_architectures)"
    )
    print(core.strip().partition("site-packages/")[2])
    print(f"first import: {fresh.seconds[0]:.1f} s, {fresh.seconds[1]:.1f} s of the processor")


def _compare(fresh: Environment, ordinary: Path, home: Path) -> None:
    steps = ("demo", "--max_steps", "3", "--output_dir")
    fresh.run("fastsft", *steps, str(home / "wheel"))
    subprocess.run(
        [str(ordinary), "-m", "fastsft", *steps, str(home / "source")],
        check=True,
        capture_output=True,
        text=True,
    )
    if different := differences(home / "wheel", home / "source"):
        raise ValueError(
            f"expected the bits of {ordinary} after three steps, got others in {', '.join(different)}; "
            "look at the linker map for another libgcc.a"
        )
    print(f"three steps: the bits of {ordinary}")


def _bits(path: Path) -> object:
    if path.suffix != ".json":
        return path.read_bytes()
    history = json.loads(path.read_text())["log_history"]
    return [
        {name: entry.get(name) for name in ("step", "loss", "grad_norm", "learning_rate")}
        for entry in history
    ]


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _show(command: str, output: str) -> None:
    print(f"$ {command}\n{output.strip()}\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--torch", required=True, help="the release that is there before: 2.11.0")
    parser.add_argument("--index", help="the index that has this torch; default: that of pip")
    parser.add_argument("--ordinary", type=Path, help="an interpreter with fastsft built from source")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
