"""A release wheel has cores for several torches: the right one is loaded, and its absence is explained."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import fastsft
from fastsft import _C
from fastsft.runtime import cores
from fastsft.runtime.cores import choose_core, way_to_kernels
from fastsft.runtime.imports import load_native
from fastsft.runtime.versions import minor_version


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cores of a wheel for three releases of torch, one of which has none for CUDA."""
    names = (
        "torch2.9-cpu",
        "torch2.11-cuda13",
        "torch2.11-cpu",
        "torch2.12-cuda13",
        "torch2.12-cuda14",
        "torch2.12-cpu",
    )
    for name in names:
        (tmp_path / name).mkdir()
    monkeypatch.setattr(cores, "CORES", tmp_path)
    return tmp_path


@pytest.mark.parametrize(("version", "cuda", "core"), [
    ("2.11.0", "13.0", "torch2.11-cuda13"), ("2.11.0+cu130", "13.0", "torch2.11-cuda13"),
    ("2.11.1+cu132", "13.2", "torch2.11-cuda13"), ("2.12.0", "14.1", "torch2.12-cuda14"),
    ("2.11.0+cpu", None, "torch2.11-cpu"), ("2.11.0+rocm7.1", None, "torch2.11-cpu"),
    ("2.11.0+cu128", "12.8", "torch2.11-cpu"), ("2.9.0+cu130", "13.0", "torch2.9-cpu"),
    ("2.12.0a0+git1", "13.0", "torch2.12-cuda13"),
])  # fmt: skip
def test_the_core_of_a_torch(wheel: Path, version: str, cuda: str | None, core: str) -> None:
    assert choose_core(version, cuda) == wheel / core


@pytest.mark.parametrize("version", ["2.10.0", "2.13.0+cpu", "3.0.0", "2.1.0"])
def test_a_torch_without_core_is_named_with_those_that_have_one(wheel: Path, version: str) -> None:
    with pytest.raises(ImportError) as caught:
        choose_core(version, None)
    said = str(caught.value)
    assert f"(2.9, 2.11, 2.12), got torch {version}; pip install 'torch==2.12.*', or build" in said


def test_what_a_wheel_says_of_a_gpu_without_kernels(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = way_to_kernels("2.12.0+cu128", "12.8")
    assert said.startswith(
        "this wheel's kernels are for a torch with CUDA 13 or 14, and torch 2.12.0+cu128 has"
    )
    assert "torch 2.11.0+cpu has no CUDA: install" in way_to_kernels("2.11.0+cpu", None)
    assert way_to_kernels("2.9.0", "13.0") == "build it where nvcc is found"
    monkeypatch.setattr(cores, "CORES", wheel / "absent")
    assert way_to_kernels("2.11.0", "12.8") == "build it where nvcc is found"


def installed(tmp_path: Path, damage: bool) -> Path:
    """A copy of the package as a release wheel has it: its only core is the extension of these tests."""
    package = tmp_path / "packages" / "fastsft"
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "cores")
    shutil.copytree(Path(fastsft.__file__).parent, package, ignore=ignored)
    extension = Path(str(_C.__file__))
    folder = package / "cores" / CORE
    folder.mkdir(parents=True)
    if damage:
        (folder / extension.name).write_text("no library")
    else:
        (folder / extension.name).symlink_to(extension)
    return package.parent


CORE = f"torch{minor_version(torch.__version__)}-cpu"


def run(packages: Path, program: str) -> subprocess.CompletedProcess[str]:
    text = f"import sys\nsys.path.insert(0, {str(packages)!r})\n{program}"
    return subprocess.run([sys.executable, "-P", "-c", text], capture_output=True, text=True, check=False)


IMPORT = (
    "from fastsft import _C\nimport fastsft._C as again\nprint(_C.__file__, again is _C, _C.torch_version)\n"
)


def test_a_core_is_loaded_from_its_folder(tmp_path: Path) -> None:
    done = run(installed(tmp_path, damage=False), IMPORT)
    name = Path(str(_C.__file__)).name
    expected = tmp_path / "packages" / "fastsft" / "cores" / CORE / name
    assert done.stdout.split() == [str(expected), "True", _C.torch_version], done.stderr


def test_a_core_that_does_not_load(tmp_path: Path) -> None:
    done = run(installed(tmp_path, damage=True), IMPORT)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and last.startswith("ImportError: fastsft")
    assert f"{CORE} does not load with torch {torch.__version__} (" in last
    assert "pip install" in last and "sources" in last and "source folder" not in last


def test_an_extension_built_from_source_needs_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not cores.is_release() and load_native() is _C
    other = SimpleNamespace(torch_version="2.98.0")
    monkeypatch.setattr("importlib.import_module", lambda name: other)
    with pytest.raises(ImportError, match=r"built with torch 2\.98\.0, but torch .* or build fastsft again"):
        load_native()
