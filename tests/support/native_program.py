"""Builds small C++ programs over csrc/core and csrc/storage for tests that need no torch."""

import importlib.util
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]


_objects: dict[tuple[str, tuple[str, ...]], str] = {}  # made by this process, for programs that share them


def build_program(target: Path, sources: list[str], flags: tuple[str, ...] = ()) -> Path:
    """Compile `sources` (relative to the repository) into `target`; the compiler is $CXX, else c++."""
    compiler = os.environ.get("CXX") or shutil.which("c++")
    assert compiler, "expected a C++ compiler, which building fastsft needs too"
    json_package = importlib.util.find_spec("nlohmann_json")
    assert json_package, "expected the package nlohmann_json of the extra [test]"
    json_include = f"{next(iter(json_package.submodule_search_locations))}/include"
    options = ["-std=c++20", "-O0", *flags, f"-I{ROOT}/csrc", f"-I{ROOT}/tests", "-isystem", json_include]

    def compile_one(source: str) -> str:
        known = _objects.get((source, flags))
        if known and Path(known).exists():
            return known
        output = f"{target}.{source.replace('/', '.')}.o"
        subprocess.run([compiler, *options, "-c", ROOT / source, "-o", output], check=True)
        _objects[source, flags] = output
        return output

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_one, sources))
    subprocess.run([compiler, *flags, *objects, "-o", target, "-lpthread"], check=True)
    return target
