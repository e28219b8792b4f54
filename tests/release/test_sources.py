"""The source archive: small, complete for a build, and its requirements are those of every build."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastsft.runtime.versions import torch_requirement

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("scikit_build_core") is None, reason="could not import 'scikit_build_core'"
)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tarfile.TarFile]:
    folder = tmp_path_factory.mktemp("sdist")
    program = f"import scikit_build_core.build as build; print(build.build_sdist({str(folder)!r}))"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.iterdir()
    assert path.stat().st_size < 5 << 20
    with tarfile.open(path) as opened:
        yield opened


def test_it_has_what_a_build_reads(archive: tarfile.TarFile) -> None:
    names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    sources = [
        name for name in tracked.split() if name.startswith(("csrc/", "cmake/", "python/", "scripts/"))
    ]
    assert set(sources) <= names and {"pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE"} <= names
    assert not [
        name
        for name in names
        if name.startswith(("tests/", ".ci/", "build/", "dist/")) or name.endswith(".so")
    ]


def test_its_torch_is_that_of_no_build(archive: tarfile.TarFile) -> None:
    (info,) = (name for name in archive.getnames() if name.endswith("/PKG-INFO"))
    file = archive.extractfile(info)
    assert file is not None
    lines = file.read().decode().splitlines()
    assert "Dynamic: Requires-Dist" in lines
    said = {
        "".join(line.split()[1:]).replace('"', "")
        for line in lines
        if line.startswith("Requires-Dist: torch")
    }
    assert {",".join(sorted(torch.removeprefix("torch").split(","))) for torch in said} == {
        ",".join(sorted(torch_requirement().removeprefix("torch").split(",")))
    }
