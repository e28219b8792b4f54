"""A program without a launcher starts its ranks itself."""

import os
import subprocess
import sys

import pytest

from fastsft.program import self_launch as own_ranks
from fastsft.program.self_launch import ranks_to_start


@pytest.fixture(autouse=True)
def program(monkeypatch, tmp_path):
    """Four GPUs, and a program in `tmp_path` without a .args file."""
    monkeypatch.setattr(own_ranks, "_visible_gpus", lambda: 4)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py")])


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ("--use_cpu", 1),
        ("--use-cpu True --seed 1", 1),
        ("--use_cp True", 1),
        ("--no_cuda=yes", 1),
        ("--use_cpu False", 4),
        ("--use_cpu True --use_cpu no", 4),
        ("--use_cpu --seed 1", 1),
        ("--output_dir use_cpu", 4),
        ("--bf16 maybe", 1),  # one process reports it
        ("--config nowhere.yaml", 1),
        ("--no_such_flag 1", 4),
    ],
)
def test_words_that_choose_the_cpu(words, count):
    assert ranks_to_start(words.split(), {}) == count


@pytest.mark.parametrize("name", ["use_cpu", "no_cuda", "use-cpu"])
def test_files_that_choose_the_cpu(tmp_path, name):
    config = tmp_path / "run.yaml"
    config.write_text(f"{name}: true\nseed: 1\n")
    words = ["--config", str(config)]
    assert ranks_to_start(words, {}) == 1
    assert ranks_to_start([*words, f"--{name}", "False"], {}) == 4
    (tmp_path / "train.args").write_text(f"--seed 1 --{name}\n")
    assert ranks_to_start([], {}) == 1
    assert ranks_to_start([f"--{name}=no"], {}) == 4


@pytest.mark.parametrize(
    ("words", "env", "count"),
    [
        ("", {}, 4),
        ("--use_cpu", {}, 1),
        ("--help", {}, 1),
        ("--help", {"FASTSFT_NUM_PROCESSES": "2"}, 1),
        ("", {"RANK": "0", "WORLD_SIZE": "1"}, 1),
        ("", {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, 1),
        ("", {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, 4),
        ("", {"FASTSFT_NUM_PROCESSES": "2"}, 2),
        ("--use_cpu", {"FASTSFT_NUM_PROCESSES": "3"}, 3),
        ("", {"FASTSFT_NUM_PROCESSES": "3", "RANK": "1", "WORLD_SIZE": "3"}, 1),
    ],
)
def test_how_many(words, env, count):
    assert ranks_to_start(words.split(), env) == count


@pytest.mark.parametrize("chosen", ["0", "many", "-1"])
def test_a_number_of_ranks_that_is_none(chosen):
    with pytest.raises(ValueError, match="FASTSFT_NUM_PROCESSES: expected a number of ranks"):
        ranks_to_start([], {"FASTSFT_NUM_PROCESSES": chosen})


PROGRAM = """
import os, sys
from fastsft.program.main import run_script
from fastsft.ranks.process_group import join
from fastsft.ranks.process_group import gather_objects
from fastsft.runtime.launch import launch

def script():
    join(60)
    places = gather_objects((launch().rank, launch().world_size, sys.argv[1:]))
    if launch().rank == 0:
        print("places", places, flush=True)

run_script(script)
"""


def test_ranks_meet(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), "--use_cpu", "a b"],
        env={**env, "FASTSFT_NUM_PROCESSES": "2"}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "places [(0, 2, ['--use_cpu', 'a b']), (1, 2, ['--use_cpu', 'a b'])]" in done.stdout
    assert "no launcher: starting 2 ranks" in done.stdout


FAILING = """
import json, os, signal
from fastsft.program.main import run_script
from fastsft.runtime.launch import launch

def script():
    if launch().rank == 1:
        {fault}
    signal.pause()

run_script(script)
"""


@pytest.mark.variants("SIGKILL")
@pytest.mark.parametrize(
    ("fault", "status", "line"),
    [
        ("raise ValueError('the data is wrong')", 1, "rank 1: error: the data is wrong\n"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "error: rank 1 was killed by SIGKILL\n"),
    ],
)
def test_a_rank_that_fails_is_told_in_its_own_line(tmp_path, fault, status, line):
    (tmp_path / "program.py").write_text(FAILING.format(fault=fault))
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")],
        env={**env, "FASTSFT_NUM_PROCESSES": "2"}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    others = "received SIGTERM before the first step: there is nothing to save, the run ends\n"
    assert (done.returncode, done.stderr.replace(others, "")) == (status, line)


def test_torchrun_is_told_what_was_wrong(tmp_path, monkeypatch):
    """In the form of torch's @record, which its page shows."""
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    from fastsft.program.error_file import write_error_file

    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    write_error_file("rank 1: error: the data is wrong")
    failure = ProcessFailure(local_rank=1, pid=1, exitcode=1, error_file=str(path))
    shown = failure.message["extraInfo"]["py_callstack"]
    assert shown == "rank 1: error: the data is wrong" and failure.timestamp > 0


def test_a_variable_that_is_nearly_ours_is_named(capsys):
    """The number of ranks, mistyped, would have no effect without a word; others' variables are theirs."""
    ranks_to_start([], {"FASTSFT_NUM_PROCESS": "2", "FASTSFT_OF_A_SCRIPT": "1"})
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "FASTSFT_NUM_PROCESS in the environment has no effect; the nearest variable is FASTSFT_NUM_PROCESSES"
    ]
