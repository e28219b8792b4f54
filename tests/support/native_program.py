"""Builds small C++ programs over csrc/core and csrc/storage for tests that need no torch."""

import importlib.util
import os
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]

_objects: dict[tuple[tuple[str, ...], tuple[str, ...]], Path] = {}  # made by this process, shared by programs


def build_program(target: Path, sources: Sequence[str], flags: tuple[str, ...] = ("-O1",)) -> Path:
    """Compile `sources` (relative to the repository) into `target`; the compiler is $CXX, else c++.

    Files of one folder of csrc are compiled as one, as pip's build does: their headers are read once.
    """
    compiler = os.environ.get("CXX") or shutil.which("c++")
    assert compiler, "expected a C++ compiler, which building fastsft needs too"
    json_package = importlib.util.find_spec("nlohmann_json")
    assert json_package, "expected the package nlohmann_json of the extra [test]"
    json_include = f"{next(iter(json_package.submodule_search_locations))}/include"
    options = ["-std=c++20", *flags, f"-I{ROOT}/csrc", f"-I{ROOT}/tests", "-isystem", json_include]

    def compile_group(group: tuple[str, ...]) -> Path:
        known = _objects.get((group, flags))
        if known and known.exists():
            return known
        output = target.with_name(f"{target.name}.{group[0].replace('/', '.')}.o")
        text = "".join(f'#include "{ROOT / source}"\n' for source in group)
        command = [compiler, *options, "-x", "c++", "-", "-c", "-o", output]
        subprocess.run(command, input=text.encode(), check=True)
        _objects[group, flags] = output
        return output

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_group, _groups(sources)))
    subprocess.run([compiler, *flags, *objects, "-o", target, "-lpthread"], check=True)
    return target


def _groups(sources: Sequence[str]) -> list[tuple[str, ...]]:
    """The files of each folder of csrc together, others alone."""
    found: dict[str, list[str]] = defaultdict(list)
    for source in sources:
        folder = source.rpartition("/")[0]
        found[folder if folder.startswith("csrc/") else source].append(source)
    return [tuple(group) for group in found.values()]
