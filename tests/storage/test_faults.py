"""Every operation of saving, rotating and cleaning up fails (docs/spec/reliability.md, rows R1 and R2).

checkpoint_faults: checkpoints, whose ranks write ranges of a common file. model_faults: the final model.
"""

import re
import subprocess

import pytest

from native_program import build_program

STORAGE = [
    *("atomic_directory", "byte_source", "checksummed_file", "crc32c", "direct_buffer"),
    *("file_name", "file_ranges", "file_set", "manifest", "mapped_file", "model_index"),
    *("path", "posix_file", "posix_file_system", "posix_place", "protection", "removal"),
    *("rotation", "staged_files"),
]
SOURCES = [
    "csrc/core/json.cpp",
    "csrc/core/watchdog.cpp",
    "csrc/core/start_threads.cpp",
    "csrc/core/regular_file.cpp",
    "csrc/core/utf8.cpp",
    "csrc/core/rank_status.cpp",
    *(f"csrc/storage/{name}.cpp" for name in STORAGE),
    "tests/faults/fault_file_system.cpp",
    "tests/faults/fault_trial.cpp",
]


@pytest.fixture(scope="module", params=["checkpoint_faults", "model_faults"])
def program(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    return build_program(folder / request.param, [*SOURCES, f"tests/faults/{request.param}.cpp"])


def run(program, tmp_path, damages, *options):
    return subprocess.run(
        [program, tmp_path / "trial", str(damages), *options], capture_output=True, text=True, check=False
    )


def points(output):
    return sum(int(count) for count in re.findall(r"(\d+) points", output))


def test_no_fault_loses_a_checkpoint(program, tmp_path):
    result = run(program, tmp_path, 1)
    assert result.returncode == 0, result.stdout
    assert points(result.stdout) > 800 and "BAD" not in result.stdout


@pytest.mark.variants("model_faults")
def test_the_check_finds_missing_syncs(program, tmp_path):
    result = run(program, tmp_path, 1, "no-sync")
    assert result.returncode == 1 and "BAD" in result.stdout


@pytest.mark.chaos
def test_no_fault_loses_a_checkpoint_with_ten_damages_each(program, tmp_path):
    result = run(program, tmp_path, 10)
    assert result.returncode == 0, result.stdout
    assert points(result.stdout) > {"checkpoint_faults": 6000, "model_faults": 3000}[program.name]
    assert "BAD" not in result.stdout


def test_a_file_system_that_stutters(tmp_path):
    """Retries are bounded, nothing is torn, and a second try that finds the work done is content.

    docs/spec/reliability.md, row R18.
    """
    program = build_program(tmp_path / "posix_faults", [*SOURCES, "tests/faults/posix_faults.cpp"])
    result = run(program, tmp_path, 200)
    assert result.returncode == 0, result.stdout
    injected = dict(re.findall(r"^(\S.*): (\d+)$", result.stdout, re.M))
    assert injected.keys() == {"EINTR", "EIO", "short write", "lost answer"}, result.stdout
    assert all(int(times) > 100 for times in injected.values())
