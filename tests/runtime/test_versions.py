"""The range of torch: one place, which the build, the wheel and the import follow."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import runpy
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any

import pytest
import torch

from fastsft import _C
from fastsft.runtime import versions
from fastsft.runtime.imports import load_native

ROOT = Path(__file__).parents[2]
OUTSIDE = ["2.10.0", "2.99.0+cpu", "1.13.1", "3.0.0", "nightly"]


def provider() -> Any:
    return runpy.run_path(str(ROOT / "scripts" / "metadata" / "dependencies.py"))["Provider"]()


def torch_of_the_wheel() -> str:
    """What a wheel built here requires."""
    return str(provider().dynamic_metadata({})["dependencies"][0])


@pytest.mark.parametrize("version", ["2.11.0", "2.11.0+cu130", "2.15.0", "2.12.0a0+git1"])
def test_releases_inside(version: str) -> None:
    assert versions.torch_problem(version) is None


@pytest.mark.parametrize("version", OUTSIDE)
def test_releases_outside(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    line = versions.torch_problem(version)
    assert line is not None and "\n" not in line
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(
        ImportError, match=rf"goes with torch {versions.TORCH_FIRST} to {versions.TORCH_LAST}"
    ):
        load_native()


# What pip puts in front of an interpreter while it builds: the environment's own packages are out of sight.
HIDES_PACKAGES = "import sys\nsys.path = [each for each in sys.path if 'site-packages' not in each]\n"


def isolated(tmp_path: Path, python: str, code: str, variables: dict[str, str] | None = None) -> str:
    (tmp_path / "sitecustomize.py").write_text(HIDES_PACKAGES)
    program = f"import runpy, sys\nsys.path.append({str(ROOT / 'scripts' / 'metadata')!r})\n{code}"
    environment = {"PYTHONPATH": str(tmp_path), "PYTHONNOUSERSITE": "1", **(variables or {})}
    done = subprocess.run(
        [python, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


REQUIRED = "import dependencies; print(*dependencies.Provider().get_requires_for_dynamic_metadata())"
WHEEL = "import dependencies; print(dependencies.Provider().dynamic_metadata({})['dependencies'][0])"


def test_a_build_of_pip_takes_the_torch_of_the_environment(tmp_path: Path) -> None:
    hidden = "import importlib.util; print(importlib.util.find_spec('torch'))"
    assert isolated(tmp_path, sys.executable, hidden) == "None"
    assert isolated(tmp_path, sys.executable, REQUIRED) == ""
    installed = versions.minor_version(_C.torch_version)
    assert isolated(tmp_path, sys.executable, WHEEL) == f"torch=={installed}.*"


@pytest.mark.parametrize("place", ["nowhere", "user", "user of a venv"])
def test_packages_of_the_user_are_seen_where_the_interpreter_sees_them(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=False)
    show = "import sysconfig; print(sysconfig.get_path('purelib', 'posix_user'))"
    base = "" if place == "user of a venv" else "import sys; sys.prefix = sys.base_prefix; "
    base += "import site; site.PREFIXES[:] = [sys.prefix]\n"
    user = {"PYTHONUSERBASE": str(tmp_path / "user")}
    site_packages = Path(isolated(tmp_path, str(folder / "bin" / "python"), show, user))
    if place != "nowhere":
        site_packages.mkdir(parents=True)
        for name in ("torch", f"torch-{_C.torch_version}.dist-info"):
            (site_packages / name).symlink_to(Path(torch.__file__).parents[1] / name)
    expected = "" if place == "user" else f"torch=={versions.TORCH_ISOLATED}.*"
    assert isolated(tmp_path, str(folder / "bin" / "python"), base + REQUIRED, user) == expected


def test_a_venv_that_shows_its_base_has_the_torch_of_its_base(tmp_path: Path) -> None:
    for shows, expected in ((False, f"torch=={versions.TORCH_ISOLATED}.*"), (True, "")):
        folder = tmp_path / str(shows)
        venv.create(folder, system_site_packages=shows, with_pip=False)
        # The base of a venv of a venv is the interpreter below both: `site` is told that it is this one.
        base = f"import site; site.PREFIXES[1:] = [{sys.prefix!r}] * {shows}\n"
        assert isolated(tmp_path, str(folder / "bin" / "python"), base + REQUIRED) == expected


def test_a_build_without_torch_asks_for_one_release_of_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]["requires"]
    assert not [each for each in needed if each.startswith("torch")]
    assert versions.torch_problem(f"{versions.TORCH_ISOLATED}.0") is None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for found in ([], [NoTorchOfTheRange()]):
        monkeypatch.setattr(importlib.metadata, "distributions", lambda found=found, **_: found)
        required = provider().get_requires_for_dynamic_metadata()
        assert required == [f"torch=={versions.TORCH_ISOLATED}.*"]
    with pytest.raises(ValueError, match=r"goes with torch .* got torch 2\.9\.1"):
        torch_of_the_wheel()
    monkeypatch.setattr(importlib.metadata, "distributions", lambda **_: [])
    with pytest.raises(ValueError, match=r"torch is not installed: pip install 'torch>="):
        torch_of_the_wheel()


class NoTorchOfTheRange:
    """A distribution that is too old."""

    version = "2.9.1"

    def locate_file(self, name: str) -> Path:
        return Path(torch.__file__).parent  # with its OpenMP


def test_the_wheel_asks_for_the_torch_of_its_build(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = versions.minor_version(_C.torch_version)
    assert torch_of_the_wheel() == f"torch=={installed}.*"
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.14.1+cu130")
    assert torch_of_the_wheel() == "torch==2.14.*"
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.99.0")
    with pytest.raises(ValueError, match=r"goes with torch .* got torch 2\.99\.0"):
        torch_of_the_wheel()


PROBE = """cmake_minimum_required(VERSION 3.25)
set(Python_EXECUTABLE {python})
set(CMAKE_CURRENT_SOURCE_DIR {root})
include({root}/cmake/FastsftTorch.cmake)
"""


@pytest.mark.parametrize("version", ["2.10.0", "2.99.0+cpu", ""])
def test_the_configuration_stops_outside_the_range(tmp_path: Path, version: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{'/there' if version else ''};{version}'\n")
    python.chmod(0o755)
    (tmp_path / "probe.cmake").write_text(PROBE.format(python=python, root=ROOT))
    cmake = Path(sys.executable).with_name("cmake")
    done = subprocess.run(
        [str(cmake) if cmake.exists() else "cmake", "-P", str(tmp_path / "probe.cmake")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = " ".join(done.stderr.split())
    assert done.returncode != 0
    assert f"{versions.TORCH_FIRST} to {versions.TORCH_LAST}" in said
    assert f"found {version} in /there" in said or not version


def test_sources_ask_for_the_whole_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their torch may differ from that of a wheel, which metadata must say, and none need be installed."""
    monkeypatch.setattr(importlib.metadata, "distributions", lambda **_: [])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    of_sources = provider()
    of_sources.build_state("sdist")
    assert of_sources.dynamic_metadata({})["dependencies"][0] == versions.torch_requirement()
    assert of_sources.dynamic_wheel({}) == {"dependencies": True}
    with pytest.raises(ValueError, match="expected no settings, got"):
        of_sources.dynamic_metadata({"torch": "2.11"})
