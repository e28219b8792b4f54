"""The Dockerfiles, which no test can build, against pyproject.toml and the rules of linters."""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from fastsft.runtime.versions import TORCH_ISOLATED

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
KNOWN = {"FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "ENTRYPOINT"}
FILES = ("Dockerfile", "Dockerfile.gpu")


def instructions(name: str) -> list[tuple[str, str]]:
    """Of a file, each as its word and the rest; lines that go on are one."""
    text = (ROOT / name).read_text("utf-8").replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def of(word: str, name: str = "Dockerfile") -> list[str]:
    return [rest for each, rest in instructions(name) if each == word]


@pytest.mark.parametrize("name", FILES)
def test_every_word_is_one_of_docker(name: str) -> None:
    words = [word for word, _ in instructions(name)]
    assert words[0] == "FROM" and set(words) == KNOWN
    assert all(Path(place).is_absolute() for place in of("WORKDIR", name))


@pytest.mark.parametrize("name", FILES)
def test_all_stages_have_a_python_that_the_project_takes(name: str) -> None:
    """With the compiler that it was tried with: Debian 12 has GCC 12."""
    found = [
        re.fullmatch(r"python:(\d+\.\d+)-slim-bookworm(?: AS (\w+))?", image) for image in of("FROM", name)
    ]
    assert all(found)
    (version,) = {match[1] for match in found if match}
    assert version in SpecifierSet(PROJECT["requires-python"])
    wheels = re.findall(r"fastsft-\*-cp(\d)(\d+)-\*\.whl", " ".join(of("RUN", name)))
    assert wheels == ([tuple(version.split("."))] if name.endswith("gpu") else [])


@pytest.mark.parametrize("line", [line for name in FILES for line in of("RUN", name)])
def test_a_command_is_a_shells_and_leaves_no_cache(line: str) -> None:
    subprocess.run(["sh", "-n", "-c", line], check=True)
    for part in map(str.strip, line.split("&&")):
        if part.startswith("apt-get install"):
            assert {"-y", "--no-install-recommends"} <= set(part.split())
            assert "apt-get update" in line and "rm -rf /var/lib/apt/lists/*" in line
        if "pip install" in part:
            assert "--no-cache-dir" in part


@pytest.mark.parametrize("name", FILES)
def test_the_program_is_not_started_as_root(name: str) -> None:
    words = [word for word, _ in instructions(name)]
    assert words[-3:] == ["USER", "WORKDIR", "ENTRYPOINT"] and of("USER", name) == ["1000"]
    (folder,) = of("WORKDIR", name)[-1:]
    assert (
        of("RUN", name)[-1] == f"useradd --create-home --uid 1000 fastsft && install -d -o fastsft {folder}"
    )
    (entry,) = of("ENTRYPOINT", name)
    assert set(json.loads(entry)) <= set(PROJECT["scripts"])


@pytest.mark.parametrize("name", FILES)
def test_torch_is_there_before_fastsft_once(name: str) -> None:
    """That of a CPU image has no CUDA, which is 2.6 GB smaller; a GPU image brings CUDA by torch alone."""
    commands = [line for line in of("RUN", name) if "pip install" in line]
    environment = re.search(
        r"-m venv (\S+) && \1/bin/pip install --no-cache-dir (.*)'(torch==.*?)'", commands[0]
    )
    assert environment is not None and environment[3] == f"torch=={TORCH_ISOLATED}.*" and len(commands) == 2
    index = "--index-url https://download.pytorch.org/whl/cpu "
    assert environment[2] == ("" if name.endswith("gpu") else index)
    assert commands[1].startswith(f"{environment[1]}/bin/pip install --no-cache-dir ")
    assert any(f"PATH={environment[1]}/bin:$PATH" in line for line in of("ENV", name))


def test_what_is_built_is_what_the_image_starts() -> None:
    *build, _, _ = of("RUN")
    assert (
        "g++" in build[0].split() and "libgomp1" in of("RUN")[-2].split()
    )  # the compiler; its OpenMP at run time
    assert build[-1] == "/opt/fastsft/bin/pip install --no-cache-dir ."
    (folder,) = {place for line in of("COPY")[1:] for place in line.split()[1:]}
    stages = [image.partition(" AS ")[2] for image in of("FROM")]
    assert of("COPY")[1].split()[0] == f"--from={stages[0]}" and folder == "/opt/fastsft"


def test_a_gpu_image_takes_the_wheel_of_a_release() -> None:
    assert (
        of("COPY", "Dockerfile.gpu") == ["dist /wheels"]
        and "g++" not in (ROOT / "Dockerfile.gpu").read_text()
    )
    assert of("RUN", "Dockerfile.gpu")[1].endswith(" /wheels/fastsft-*-cp311-*.whl")
    (environment,) = of("ENV", "Dockerfile.gpu")
    assert (
        "NVIDIA_VISIBLE_DEVICES=all" in environment
        and "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in environment
    )


def test_nothing_that_the_build_reads_is_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text("utf-8").split()
    needed = ["pyproject.toml", "CMakeLists.txt", "README.md", *PROJECT["license-files"]]
    needed += ["csrc", "cmake", "python", "scripts"]
    assert all((ROOT / name).exists() for name in needed)
    for name in (*needed, "dist"):
        assert not any(fnmatch.fnmatch(name, pattern) for pattern in ignored), name
