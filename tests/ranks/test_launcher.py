"""Who we are among the ranks, and two processes that meet."""

import os
import subprocess
import sys

import pytest

from fastsft.ranks.process_group import Groups, join
from fastsft.runtime.launch import Launch, launch, threads_per_rank

TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
SLURM = {
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
}


@pytest.mark.parametrize(
    ("env", "place"),
    [
        ({}, Launch(0, 0, 1, 1)),
        (TORCHRUN, Launch(3, 1, 4, 2)),
        (SLURM, Launch(2, 0, 4, 2)),
        # A batch script itself, before srun: the job has tasks, this process is not one of them.
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, Launch(0, 0, 1, 1)),
    ],
)
def test_place(env, place):
    assert launch(env) == place


def test_a_rank_above_0_does_not_train_alone():
    with pytest.raises(ValueError, match="WORLD_SIZE"):
        launch({"RANK": "1"})
    assert launch({"RANK": "0"}) == Launch()


@pytest.mark.parametrize(
    ("env", "chosen"),
    [
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "1"}, 1),
        ({**TORCHRUN, "OMP_NUM_THREADS": "5", "TORCHELASTIC_RUN_ID": "x"}, 5),
    ],
)
def test_chosen_threads(env, chosen):
    assert threads_per_rank(env) == chosen


def test_cores_are_shared_by_the_ranks_of_a_machine(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    assert threads_per_rank({}) == 8
    assert threads_per_rank(TORCHRUN) == 4
    # torchrun writes this 1 when nobody chose.
    assert threads_per_rank({**TORCHRUN, "OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x"}) == 4


def test_alone_opens_no_group():
    assert join() == Groups("", "")


MEET = """
import torch.distributed as dist
from fastsft.ranks import process_group as launcher
from fastsft.runtime.launch import launch
from fastsft.trainer.signals import SignalGuard
import os, signal
groups = launcher.join(60)
assert groups.gather and groups.reduce and groups.gather != groups.reduce
assert launcher.join() is groups
place = launch()
assert launcher.gather_objects(place.rank * 10) == [0, 10]
with SignalGuard() as guard:
    assert guard.take() == 0
    if place.rank == 1:
        os.kill(os.getpid(), signal.SIGUSR1)
    assert guard.take() == signal.SIGUSR1
    assert guard.take() == 0
launcher.barrier()
launcher.leave()
assert not dist.is_initialized()
os.write(1, b"met" + os.linesep.encode())
"""


@pytest.mark.thorough
def test_two_ranks_meet_and_agree_on_a_signal(tmp_path):
    script = tmp_path / "meet.py"
    script.write_text(MEET)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node=2",
        str(script),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("met") == 2
