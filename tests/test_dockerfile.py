"""The Dockerfile, which no test can build, against pyproject.toml and the rules of linters for such files."""

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
KNOWN = ("FROM", "RUN", "WORKDIR", "COPY", "ENV", "ENTRYPOINT")


def instructions() -> list[tuple[str, str]]:
    """Of the file, each as its word and the rest; lines that go on are one."""
    text = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def of(word: str) -> list[str]:
    return [rest for name, rest in instructions() if name == word]


def test_every_word_is_one_of_docker() -> None:
    words = [word for word, _ in instructions()]
    assert words[0] == "FROM" and set(words) == set(KNOWN)
    assert all(Path(place).is_absolute() for place in of("WORKDIR"))


def test_both_stages_have_a_python_that_the_project_takes() -> None:
    """With the compiler that it was tried with: Debian 12 has GCC 12."""
    found = [re.fullmatch(r"python:(\d+\.\d+)-slim-bookworm(?: AS (\w+))?", image) for image in of("FROM")]
    assert len(found) == 2 and all(found)
    versions = [match[1] for match in found if match]
    assert versions[0] == versions[1] and versions[0] in SpecifierSet(PROJECT["requires-python"])


@pytest.mark.parametrize("line", of("RUN"))
def test_a_command_is_a_shells_and_leaves_no_cache(line: str) -> None:
    subprocess.run(["sh", "-n", "-c", line], check=True)
    for part in map(str.strip, line.split("&&")):
        if part.startswith("apt-get install"):
            assert {"-y", "--no-install-recommends"} <= set(part.split())
            assert "apt-get update" in line and "rm -rf /var/lib/apt/lists/*" in line
        if "pip install" in part:
            assert "--no-cache-dir" in part


def test_what_is_built_is_what_the_image_starts() -> None:
    *build_lines, run = of("RUN")
    build = " ".join(build_lines)
    assert "g++" in build.split() and "libgomp1" in run.split()  # the compiler; its OpenMP at run time
    environment = re.search(r"-m venv (\S+) && \1/bin/pip install --no-cache-dir '(torch==.*?)'", build)
    assert environment is not None and environment[2] == f"torch=={TORCH_ISOLATED}.*"
    assert build_lines[-1] == f"{environment[1]}/bin/pip install --no-cache-dir ."
    (folder,) = {place for line in of("COPY")[1:] for place in line.split()[1:]}
    assert folder == environment[1] and f"PATH={folder}/bin:$PATH" in of("ENV")
    stages = [image.partition(" AS ")[2] for image in of("FROM")]
    assert of("COPY")[1].split()[0] == f"--from={stages[0]}"
    (entry,) = of("ENTRYPOINT")
    assert set(json.loads(entry)) <= set(PROJECT["scripts"])


def test_nothing_that_the_build_reads_is_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text("utf-8").split()
    needed = ["pyproject.toml", "CMakeLists.txt", "README.md", *PROJECT["license-files"]]
    needed += ["csrc", "cmake", "python", "scripts"]
    for name in needed:
        assert (ROOT / name).exists()
        assert not any(fnmatch.fnmatch(name, pattern) for pattern in ignored), name
