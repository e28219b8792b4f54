"""The checks of a build: archives of another compiler, symbols that a torch without CUDA does not have."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from build_wheel import foreign_archives, missing_symbols
from core_files import read_library

Link = Callable[..., Path]
LIBGCC = Path(
    subprocess.run(
        ["gcc", "-print-libgcc-file-name"], capture_output=True, text=True, check=True
    ).stdout.strip()
)


def map_of(folder: Path, *flags: str) -> str:
    """The linker map of a library that takes something from libgcc.a."""
    text = '__attribute__((target_clones("avx2", "default"))) int f(int a) { return a + 1; }'
    command = ["g++", "-shared", "-fPIC", *flags, "-x", "c++", "-", "-o", str(folder / "f.so")]
    subprocess.run([*command, f"-Wl,-Map={folder / 'f.map'}"], input=text, text=True, check=True)
    return (folder / "f.map").read_text()


def test_the_archives_of_the_compiler(tmp_path: Path) -> None:
    assert foreign_archives(map_of(tmp_path), LIBGCC) == []


def test_archives_of_another_compiler(tmp_path: Path) -> None:
    other = tmp_path / "gcc-10"
    other.mkdir()
    (other / "libgcc.a").write_bytes(LIBGCC.read_bytes())
    (fault,) = foreign_archives(map_of(tmp_path, f"-L{other}"), LIBGCC)
    assert f"got {other}/libgcc.a; leave its folder out of the link" in fault


@pytest.mark.parametrize("text", ["", "LOAD /usr/lib/libm.so\n", "LOAD /elsewhere/my_libgcc.a\n"])
def test_a_map_without_libgcc(text: str) -> None:
    assert foreign_archives(text, LIBGCC) == [
        "expected libgcc.a in the linker map, got none; link by g++ with -Wl,-Map"
    ]


def test_symbols_that_nobody_has(link: Link) -> None:
    torch = link("void torch_add(void) {}", name="libtorch.so")
    calls = (
        "torch_add",
        "torch_cuda_add",
        "PyLong_Type",
        "_PyObject_New",
        "GOMP_parallel",
        "omp_get_num_threads",
    )
    core = link(
        "".join(f"void {name}(void);" for name in calls)
        + "void f(void) {"
        + "".join(f"{name}();" for name in calls)
        + "}"
    )
    assert read_library(core).undefined == set(calls)
    assert missing_symbols(core, [torch]) == ["torch_cuda_add"]
    assert missing_symbols(core, []) == ["torch_add", "torch_cuda_add"]
