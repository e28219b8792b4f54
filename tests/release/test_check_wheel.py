"""Each check of a release wheel finds the fault that it is for, and none in a wheel without faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import check_wheel
from check_wheel import GPUS, check_core
from merge_wheels import merge_wheels, read_wheel, write_wheel

Link = Callable[..., Path]
SYMBOLS = {"libc.so.6": "GLIBC_2.28", "libstdc++.so.6": "GLIBCXX_3.4.24", "libgcc_s.so.1": "GCC_7.0.0"}


def faults_of(path: Path, core: str = "torch2.11-cpu", gpus: set[str] | None = None) -> list[str]:
    return list(
        check_core(path, core, lambda _: GPUS if core.endswith("13") and gpus is None else gpus or set())
    )


def test_a_core_within_all_limits(link: Link) -> None:
    assert faults_of(link(versions=tuple(SYMBOLS.items()))) == []
    cuda = ("libcudart.so.13", "libcublasLt.so.13", "libcudnn.so.9", "libtorch_cuda.so", "libc10.so")
    library = link(versions=tuple((file, file) for file in cuda))
    assert faults_of(library, "torch2.11-cuda13") == []


@pytest.mark.parametrize(("file", "version"), [
    ("libc.so.6", "GLIBC_2.29"), ("libc.so.6", "GLIBC_2.34"), ("libc.so.6", "GLIBC_ABI_DT_RELR"),
    ("libc.so.6", "GLIBC_PRIVATE"), ("libm.so.6", "GLIBC_2.29"), ("libc.so.6", "GLIBC_3.0"),
    ("libstdc++.so.6", "GLIBCXX_3.4.25"), ("libstdc++.so.6", "CXXABI_1.3.12"),
    ("libgcc_s.so.1", "GCC_12.0.0"), ("libc.so.6", "GLIBC_2.28.1"),
])  # fmt: skip
def test_symbols_that_are_too_new(link: Link, file: str, version: str) -> None:
    (fault,) = faults_of(link(versions=((file, version),)))
    assert f"got {version} of {file}; give cmake/older_system.c" in fault


@pytest.mark.parametrize(("file", "core", "allowed"), [
    ("libgomp.so.1", "torch2.11-cpu", False), ("libgomp-a34b3233.so.1", "torch2.11-cuda13", False),
    ("libcudart.so.13", "torch2.11-cpu", False), ("libcudart.so.12", "torch2.11-cuda13", False),
    ("libtorch_cuda.so", "torch2.11-cpu", False), ("libopenblas.so.0", "torch2.11-cuda13", False),
    ("libcudart.so.12", "torch2.11-cuda12", True), ("libtorch_python.so", "torch2.11-cpu", True),
])  # fmt: skip
def test_libraries_that_nobody_brings(link: Link, file: str, core: str, allowed: bool) -> None:
    gpus = set() if core.endswith("cpu") else GPUS
    faults = faults_of(link(versions=((file, "of_its_own"),)), core, gpus)
    assert faults == ([] if allowed else faults) and len(faults) == (not allowed)
    assert allowed or f"got {file}; leave it out" in faults[0]


@pytest.mark.parametrize(
    "runpath", ["", "$ORIGIN/../torch/lib", f"{check_wheel.RUNPATH}:/usr/local/cuda/lib64"]
)
def test_other_run_paths(link: Link, runpath: str) -> None:
    (fault,) = faults_of(link(runpath=runpath))
    assert f"expected the run path {check_wheel.RUNPATH}, got {runpath or 'none'};" in fault


@pytest.mark.parametrize(("core", "gpus"), [
    ("torch2.11-cpu", {"sm_90"}), ("torch2.11-cuda13", set()), ("torch2.11-cuda13", GPUS - {"sm_80"}),
    ("torch2.11-cuda13", GPUS - {"compute_120"}), ("torch2.11-cuda13", GPUS | {"compute_80"}),
])  # fmt: skip
def test_other_gpus(link: Link, core: str, gpus: set[str]) -> None:
    (fault,) = check_core(link(), core, lambda _: gpus)
    assert f"got {sorted(gpus)}" in fault


def core_of(name: str) -> str:
    return f"fastsft/cores/{name}/_C.cpython-311-x86_64-linux-gnu.so"


@pytest.fixture
def released(link: Link, wheel: Callable[..., Path], tmp_path: Path) -> Path:
    """A wheel for two releases of torch, without CUDA."""
    core = link().read_bytes()
    paths = [wheel(name, {core_of(name): core}) for name in ("torch2.11-cpu", "torch2.12-cpu")]
    return merge_wheels(paths, tmp_path / "dist")


def changed(path: Path, name: str, old: bytes = b"", new: bytes | None = None) -> Path:
    """The wheel with another content of a file; None: without it."""
    files = read_wheel(path)
    content = files.pop(name, b"")
    if new is not None:
        assert old in content
        files[name] = content.replace(old, new) if old else new
    write_wheel(files, path)
    return path


def test_a_wheel_without_faults(
    released: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["check_wheel.py", str(released)])
    assert check_wheel.main() == 0 and capsys.readouterr().out == "no faults\n"


METADATA, WHEEL = "fastsft-0.1.0.dist-info/METADATA", "fastsft-0.1.0.dist-info/WHEEL"


@pytest.mark.parametrize(("change", "said"), [
    ((METADATA, b"torch>=2.11,<2.13", b"torch==2.11.*"), "expected the requirement torch>=2.11,<2.13, as"),
    ((METADATA, b"Requires-Dist: torch>=2.11,<2.13\n", b""), "got []; make it by merge_wheels"),
    ((WHEEL, b"manylinux_2_28_x86_64", b"linux_x86_64"), "expected a wheel for manylinux_2_28_x86_64"),
    ((core_of("torch2.12-cpu"),), "expected the requirement torch>=2.11,<2.12"),
    (("fastsft/_C.cpython-311-x86_64-linux-gnu.so", b"", b"x"), "expected libraries in fastsft/cores/ alone"),
    (("fastsft.libs/libgomp-a34b3233.so.1.0.0", b"", b"code"), "expected libraries in fastsft/cores/ alone"),
])  # fmt: skip
def test_faults_of_a_wheel(
    released: Path,
    change: tuple,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["check_wheel.py", str(changed(released, *change))])
    assert check_wheel.main() == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{released}: ") and said in line


def test_a_core_inside_is_checked(released: Path, link: Link) -> None:
    planted = link(versions=(("libc.so.6", "GLIBC_2.34"),), runpath="/home").read_bytes()
    faults = check_wheel.check_wheel(changed(released, core_of("torch2.12-cpu"), b"", planted))
    assert [fault.split(": ")[0] for fault in faults] == [core_of("torch2.12-cpu")] * 2


def test_a_torch_without_a_core_for_cpus(link: Link, wheel: Callable[..., Path], tmp_path: Path) -> None:
    core = "torch2.11-cuda13"
    path = merge_wheels([wheel(core, {core_of(core): link().read_bytes()})], tmp_path / "dist")
    faults = check_wheel.check_wheel(path)
    assert len(faults) == 2 and "expected a core torch2.11-cpu next to torch2.11-cuda13" in faults[0]
    assert "expected code for ['compute_120'" in faults[1]


def test_no_core_at_all(wheel: Callable[..., Path]) -> None:
    faults = check_wheel.check_wheel(wheel("none", {}))
    assert any("expected cores in fastsft/cores/, got none" in fault for fault in faults)


def test_the_size(released: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = released.stat().st_size / 2**20
    monkeypatch.setattr(check_wheel, "MOST_MEGABYTES", size / 2)
    assert check_wheel.check_wheel(released) == []
    monkeypatch.setattr(check_wheel, "MOST_MEGABYTES", size / 2.1)
    (fault,) = check_wheel.check_wheel(released)
    assert "MB for 2 releases of torch, got 0.0; look" in fault
