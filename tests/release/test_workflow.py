"""The workflow of a release, which no test can run: its scripts, versions, artifacts and rights."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from fastsft.runtime import versions

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
WORKFLOW: dict[Any, Any] = yaml.safe_load(TEXT)
JOBS: dict[str, dict[str, Any]] = WORKFLOW["jobs"]
STEPS = [(name, step) for name, job in JOBS.items() for step in job["steps"]]
COMMANDS = [(name, step["run"]) for name, step in STEPS if "run" in step]


@pytest.mark.parametrize(("job", "command"), COMMANDS)
def test_commands_are_a_shells_and_name_files_that_are_there(job: str, command: str) -> None:
    plain = re.sub(r"\$\{\{.*?\}\}", "x", command)
    subprocess.run(["bash", "-n", "-c", plain], check=True)
    scripts = re.findall(r"scripts/\S+\.py", command)
    assert all((ROOT / script).is_file() for script in scripts)
    for script in scripts:
        text = (ROOT / script).read_text()
        assert all(f'"{flag}"' in text for flag in re.findall(r"--\w+", command)), command


def test_all_scripts_of_a_release_are_used() -> None:
    used = set(re.findall(r"scripts/release/(\w+)\.py", TEXT))
    assert used == {"build_wheel", "merge_wheels", "check_wheel", "try_wheel"}


def test_its_versions_are_those_of_the_project() -> None:
    first, last = (int(each.split(".")[1]) for each in (versions.TORCH_FIRST, versions.TORCH_LAST))
    matrix = JOBS["cores"]["strategy"]["matrix"]
    assert matrix["torch"] == [f"2.{minor}" for minor in range(first, last + 1)]
    assert matrix["python"] == JOBS["wheels"]["strategy"]["matrix"]["python"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert all(each in SpecifierSet(project["project"]["requires-python"]) for each in matrix["python"])
    tried = re.findall(r"--torch '([\d.]+)\.\*'", TEXT)
    assert set(tried) <= set(matrix["torch"]) and {versions.TORCH_FIRST, versions.TORCH_LAST} <= set(tried)
    (sources,) = (command for job, command in COMMANDS if job == "sources" and "pip install" in command)
    assert all(each in sources for each in project["build-system"]["requires"])
    assert matrix["python"][0] in (ROOT / "README.md").read_text("utf-8")


def test_what_a_job_takes_another_one_before_it_gives() -> None:
    given = {
        step["with"]["name"].replace("${{ matrix.python }}", "3.11")
        for _, step in STEPS
        if "upload" in step.get("uses", "")
    }
    taken = [(name, step["with"]["pattern"]) for name, step in STEPS if "download" in step.get("uses", "")]
    for job, pattern in taken:
        braces = re.fullmatch(r"\{(.*)\}", pattern)
        for each in braces[1].split(",") if braces else [pattern.replace("${{ matrix.python }}", "3.11")]:
            assert [name for name in given if fnmatch.fnmatch(name, each)], each
        assert set(
            JOBS[job]["needs"] if isinstance(JOBS[job]["needs"], list) else [JOBS[job]["needs"]]
        ) <= set(JOBS)


def test_publishing_needs_no_token_and_only_a_release_publishes() -> None:
    assert "secrets." not in TEXT and "password" not in TEXT and "PYPI" not in TEXT
    rights = {name: job.get("permissions", {}) for name, job in JOBS.items()}
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert {name for name, right in rights.items() if right} == {"attach", "publish"}
    assert rights["publish"] == {"id-token": "write"} and rights["attach"] == {"contents": "write"}
    for name in ("attach", "publish"):
        assert JOBS[name]["if"] == "github.event_name == 'release'" and set(JOBS[name]["needs"]) == {
            "wheels",
            "sources",
        }
    assert JOBS["publish"]["environment"] == "pypi"
    publishers = [name for name, step in STEPS if "pypi-publish" in step.get("uses", "")]
    assert publishers == ["publish"]


def test_actions_have_versions() -> None:
    assert all(
        re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", step["uses"])
        for _, step in STEPS
        if "uses" in step
    )
