"""torchrun starts its ranks again after a failure: they meet, and the run resumes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fastsft.ranks.torchrun_job import is_restart, own_start
from launched_runs import FLAGS

# On the first attempt rank 1 has another version, or is killed once there is a new checkpoint.
PROGRAM = """
import os, pathlib, signal, sys, threading, time
import fastsft
from fastsft.program.main import run_script
from fastsft.train import train

fault, manifest = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1))

def kill(began=time.time()):
    while not (manifest.exists() and manifest.stat().st_mtime > began):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)

print(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}\\n", end="", flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    if fault == "version":
        fastsft.__version__ = "9.9"
    else:
        threading.Thread(target=kill, daemon=True).start()
run_script(train)
"""
STEPS = 40


def launch(folder: Path, fault: str, **flags: object) -> subprocess.CompletedProcess[str]:
    """torchrun with one restart, writing to `folder`/out."""
    (folder / "program.py").write_text(PROGRAM)
    output = folder / "out"
    every = {
        **FLAGS, "output_dir": output, "max_steps": STEPS, "save_strategy": "steps", "save_steps": 4, **flags
    }  # fmt: skip
    return subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
            "--max_restarts", "1", str(folder / "program.py"), fault,
            str(output / "checkpoint-8" / "manifest.json"),
            *(f"--{name}={value}" for name, value in every.items()),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["killed", "version"])
def test_ranks_of_a_second_attempt_meet(fault: str, tmp_path: Path) -> None:
    done = launch(tmp_path, fault)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("attempt 0") == done.stdout.count("attempt 1") == 2
    assert ("resumed from" in done.stdout) == (fault == "killed")
    assert ("rank 1 has" in done.stderr) == (fault == "version")
    assert json.loads((tmp_path / "out" / "trainer_state.json").read_text())["global_step"] == STEPS


@pytest.mark.variants("[no_resume]")
@pytest.mark.parametrize("flag", ["no_resume", "resume_from_checkpoint"])
def test_how_a_job_begins_is_for_its_first_start(flag: str, tmp_path: Path) -> None:
    """--no_resume and a named checkpoint; checkpoints of another job are never taken for this one's."""
    assert launch(tmp_path, "none", max_steps=4).returncode == 0
    first = tmp_path / "out" / "checkpoint-4"
    flags = {flag: True if flag == "no_resume" else str(first)}
    done = launch(tmp_path, "killed", **flags)
    assert done.returncode == 0, done.stderr[-4000:]
    line = re.search(
        r"torchrun started the ranks again: --(\w+) (\S+) was for the first start of this job, which "
        r"goes on from \S+/checkpoint-(\d+), its own\n",
        done.stdout,
    )
    assert line and {line[1]: line[2]} == {name: str(value) for name, value in flags.items()}
    assert int(line[3]) >= 8 and f"resumed from {tmp_path}/out/checkpoint-{line[3]}: " in done.stdout
    renamed = [text for text in done.stdout.splitlines() if " are now called previous-" in text]
    assert len(renamed) == int(flag == "no_resume"), renamed  # by the first start alone


def test_starts_of_one_torchrun_process() -> None:
    files = {"RANK": "0", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"}
    names = [
        own_start({**files, "TORCHELASTIC_ERROR_FILE": f"/tmp/torchelastic_a/none_{each}/error.json"})
        for each in ("x/attempt_0/0", "x/attempt_1/1", "y/attempt_0/0")
    ]
    assert all(names) and names[0] == names[1] != names[2]
    assert own_start({"RANK": "0"}) is own_start({**files, "TORCHELASTIC_ERROR_FILE": ""}) is None


def test_a_restart_is_a_later_start_of_the_same_job() -> None:
    begun = {"one": "0-11", "two": "0-22"}
    assert is_restart(begun, {"one": "1-12", "two": "1-23"})
    assert is_restart(begun, {"one": "0-12", "three": "0-31"})  # another machine takes part
    assert not is_restart(begun, begun)  # the same ranks train twice
    assert not is_restart(begun, {"four": "1-41"}) and not is_restart({}, begun)
