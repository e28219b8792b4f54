"""Wheels of single cores become one, which pip installs."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from fastsft.runtime.versions import torch_requirement as of_the_range
from merge_wheels import merge_wheels, read_wheel, torch_requirement

Wheel = Callable[..., Path]


def core_of(name: str) -> str:
    return f"fastsft/cores/{name}/_C.so"


@pytest.mark.parametrize(("minors", "requirement"), [
    (["2.11"], "torch>=2.11,<2.12"), (["2.11", "2.12"], "torch>=2.11,<2.13"),
    (["2.15", "2.11", "2.12"], "torch>=2.11,<2.16,!=2.13.*,!=2.14.*"), (["2.9", "2.10"], "torch>=2.9,<2.11"),
])  # fmt: skip
def test_the_requirement_names_the_torches_that_have_a_core(minors: list[str], requirement: str) -> None:
    cores = [f"torch{minor}-{kind}" for minor in minors for kind in ("cpu", "cuda13")]
    assert torch_requirement(cores) == requirement
    assert all(f"{minor}.1+cpu" in Requirement(requirement).specifier for minor in minors)


def test_cores_for_the_whole_range() -> None:
    assert torch_requirement([f"torch2.{minor}-cpu" for minor in range(11, 16)]) == of_the_range()


def test_one_wheel_has_all_cores(wheel: Wheel, tmp_path: Path) -> None:
    names = ("torch2.11-cuda13", "torch2.11-cpu", "torch2.12-cpu")
    paths = [wheel(name, {core_of(name): name.encode()}) for name in names]
    paths[2].write_bytes(paths[2].read_bytes().replace(b"torch==2.11.*", b"torch==2.12.*"))
    merged = merge_wheels(paths, tmp_path / "dist")
    assert merged.name == "fastsft-0.1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    files = read_wheel(merged)
    assert {name: files[core_of(name)] for name in names} == {name: name.encode() for name in names}
    lines = files["fastsft-0.1.0.dist-info/METADATA"].decode().splitlines()
    assert [line for line in lines if "Requires" in line] == [
        "Requires-Dist: torch>=2.11,<2.13", "Requires-Dist: numpy>=1.26",
    ]  # fmt: skip
    assert b"Tag: cp311-cp311-manylinux_2_28_x86_64" in files["fastsft-0.1.0.dist-info/WHEEL"].splitlines()
    first = merged.read_bytes()
    assert merge_wheels(reversed(paths), tmp_path / "dist").read_bytes() == first


def test_pip_installs_it(wheel: Wheel, tmp_path: Path) -> None:
    """pip compares every file with RECORD."""
    name = "torch2.11-cpu"
    merged = merge_wheels([wheel(name, {core_of(name): b"core"})], tmp_path / "dist")
    anywhere = merged.rename(merged.with_name("fastsft-0.1.0-py3-none-any.whl"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target"]
    subprocess.run([*command, str(tmp_path / "there"), str(anywhere)], check=True, capture_output=True)
    installed = tmp_path / "there" / core_of(name)
    assert installed.read_bytes() == b"core" and installed.stat().st_mode & 0o111
    with zipfile.ZipFile(anywhere) as archive:
        record = archive.read("fastsft-0.1.0.dist-info/RECORD").decode()
    assert len(record.splitlines()) == len(read_wheel(anywhere)) + 1


def test_wheels_of_different_sources(wheel: Wheel, tmp_path: Path) -> None:
    one = wheel("one", {core_of("torch2.11-cpu"): b"", "fastsft/train.py": b"a"})
    other = wheel("other", {core_of("torch2.12-cpu"): b"", "fastsft/train.py": b"b"})
    with pytest.raises(ValueError, match=r"other.*: fastsft/train.py differs .* from the same sources"):
        merge_wheels([one, other], tmp_path)
