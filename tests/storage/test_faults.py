"""Every operation of saving, replacing, rotating, deleting and cleaning up fails (reliability.md, R1, R2)."""

import re
import subprocess

import pytest

from native_program import build_program

STORAGE = [
    *("atomic_directory", "checksummed_file", "crc32c", "file_name", "manifest", "mapped_file", "path"),
    *("posix_file_system", "rotation", "staged_files"),
]
SOURCES = [
    "csrc/core/json.cpp",
    "csrc/core/utf8.cpp",
    *(f"csrc/storage/{name}.cpp" for name in STORAGE),
    "tests/faults/fault_file_system.cpp",
    "tests/faults/checkpoint_faults.cpp",
]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build_program(tmp_path_factory.mktemp("faults") / "checkpoint_faults", SOURCES)


def run(program, tmp_path, damages, *options):
    return subprocess.run(
        [program, tmp_path / "trial", str(damages), *options], capture_output=True, text=True, check=False
    )


def points(output):
    return sum(int(count) for count in re.findall(r"(\d+) points", output))


def test_no_fault_loses_a_checkpoint(program, tmp_path):
    result = run(program, tmp_path, 1)
    assert result.returncode == 0, result.stdout
    assert points(result.stdout) > 1000 and "BAD" not in result.stdout


def test_the_check_finds_missing_syncs(program, tmp_path):
    result = run(program, tmp_path, 1, "no-sync")
    assert result.returncode == 1 and "BAD" in result.stdout


@pytest.mark.chaos
def test_no_fault_loses_a_checkpoint_with_ten_damages_each(program, tmp_path):
    result = run(program, tmp_path, 10)
    assert result.returncode == 0, result.stdout
    assert points(result.stdout) > 6000
