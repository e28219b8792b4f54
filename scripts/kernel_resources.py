"""What ptxas says of every CUDA kernel: registers, stack, spills, static shared memory. Needs nvcc, no GPU.

usage: python scripts/kernel_resources.py [--write]

Compares with benchmarks/kernel_resources.tsv and exits 1 when a kernel takes more than there; `--write`
writes that file.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "benchmarks" / "kernel_resources.tsv"
COLUMNS = ("file", "kernel", "registers", "stack", "spill_stores", "spill_loads", "shared")
KERNEL = re.compile(r"Compiling entry function '(.*?)' for")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")

# (file, kernel) -> registers, stack, spill stores, spill loads, static shared memory
Resources = dict[tuple[str, str], tuple[int, ...]]


def said_of(source: Path) -> str:
    """ptxas's lines for one file, with names of C++."""
    command = [
        "nvcc",
        "-std=c++20",
        "-arch=sm_90",
        "-O3",
        "-I",
        str(ROOT / "csrc"),
        "-Xptxas",
        "-v",
        "-cubin",
    ]
    done = subprocess.run([*command, "-o", "/dev/null", str(source)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{source}: nvcc says: {done.stderr[-2000:]}")
    return subprocess.run(["c++filt"], input=done.stderr, capture_output=True, text=True, check=True).stdout


def kernels(text: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and figures of each kernel in ptxas's lines."""
    for part in text.split("ptxas info    : ")[1:]:
        if found := KERNEL.search(part):
            name = found[1].removeprefix("void ").partition("(anonymous namespace)::")[2]
            name = re.sub(r"\(fastsft::.*|\((?:const )?(?:float|double|__nv).*", "", name)
        elif found := SPILLS.search(part):
            spills = tuple(int(number) for number in found.groups())
        elif found := USED.match(part):
            yield name, (int(found[1]), *spills, int(found[2] or 0))


def measured() -> Resources:
    """The figures of all kernels of this checkout."""
    sources = sorted((ROOT / "csrc").rglob("*.cu"))
    return {
        (str(source.relative_to(ROOT / "csrc")), name): figures
        for source in sources
        for name, figures in kernels(said_of(source))
    }


def committed() -> Resources:
    """The figures of the table."""
    rows = [line.split("\t") for line in TABLE.read_text().splitlines()[1:]]
    return {(file, name): tuple(map(int, figures)) for file, name, *figures in rows}


def grown(now: Resources, before: Resources) -> list[str]:
    """A line for each kernel that is not in the table, not in the sources, or takes more."""
    lines = [f"{' '.join(key)}: not in the table" for key in sorted(now.keys() - before.keys())]
    lines += [f"{' '.join(key)}: only in the table" for key in sorted(before.keys() - now.keys())]
    for key in sorted(now.keys() & before.keys()):
        for column, ours, theirs in zip(COLUMNS[2:], now[key], before[key], strict=True):
            if ours > theirs:
                lines.append(f"{' '.join(key)}: {column} {ours}, the table says {theirs}")
    return lines


def main(arguments: list[str]) -> int:
    if shutil.which("nvcc") is None:
        print("kernel_resources: there is no nvcc", file=sys.stderr)
        return 1
    now = measured()
    if arguments == ["--write"]:
        rows = ["\t".join([*key, *map(str, figures)]) for key, figures in sorted(now.items())]
        TABLE.write_text("\n".join(["\t".join(COLUMNS), *rows]) + "\n")
        return 0
    lines = grown(now, committed())
    print("\n".join(lines) or f"{len(now)} kernels take what the table says, or less")
    return 1 if lines else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
