"""torchrun starts its ranks again after a failure: they meet, and the run resumes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launched_runs import FLAGS

# On the first attempt rank 1 has another version, or is killed once there is a checkpoint.
PROGRAM = """
import os, pathlib, signal, sys, threading, time
import fastsft
from fastsft.program.main import run_script
from fastsft.train import train

fault, manifest = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1))

def kill():
    while not manifest.exists():
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


@pytest.mark.parametrize("fault", ["killed", "version"])
def test_ranks_of_a_second_attempt_meet(fault: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    output = tmp_path / "out"
    flags = {**FLAGS, "output_dir": output, "max_steps": STEPS, "save_strategy": "steps", "save_steps": 4}
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
            "--max_restarts", "1", str(tmp_path / "program.py"), fault,
            str(output / "checkpoint-4" / "manifest.json"),
            *(f"--{name}={value}" for name, value in flags.items()),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("attempt 0") == done.stdout.count("attempt 1") == 2
    assert ("resumed from" in done.stdout) == (fault == "killed")
    assert ("rank 1 has" in done.stderr) == (fault == "version")
    assert json.loads((output / "trainer_state.json").read_text())["global_step"] == STEPS
