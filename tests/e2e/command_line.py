"""Starting `python -m fastsft.train` as a person does, alone or under torchrun, and reading what it left."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from safetensors import safe_open

import fastsft

TRAINER = Path(__file__).parents[1] / "golden" / "trainer"
PACKAGE = Path(fastsft.__file__).parents[1]


def words(flags):
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))]


def command_and_environment(flags, output_dir, ranks, module):
    flags = {"plot_loss": False, **flags}
    command = [sys.executable]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    command += ["-m", module, "--output_dir", str(output_dir), *words(flags)]
    paths = [str(PACKAGE), os.environ.get("PYTHONPATH", "")]
    return command, {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def start(flags, output_dir, *, ranks=1, module="fastsft.train", check=True):
    """Run the command to its end; the finished process, with its text."""
    command, env = command_and_environment(flags, output_dir, ranks, module)
    done = subprocess.run(command, cwd=TRAINER, env=env, capture_output=True, text=True, timeout=300)
    is_clean = not any(words in done.stderr for words in ("Exception ignored", "terminate called"))
    if check and (done.returncode or not is_clean):
        raise AssertionError(f"status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}")
    return done


def begin(flags, output_dir, *, ranks=1):
    """Start the command; the running process, with its stdout to read."""
    command, env = command_and_environment(flags, output_dir, ranks, "fastsft.train")
    return subprocess.Popen(
        command, cwd=TRAINER, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def descendants(pid):
    """The process and all below it, parents first."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(below for child in children for below in descendants(int(child)))]


def kill_all(pid):
    """SIGKILL to a launcher and its ranks; torchrun puts each rank into a session of its own."""
    for one in descendants(pid):
        os.kill(one, signal.SIGKILL)


def log_history(output_dir):
    return json.loads((Path(output_dir) / "trainer_state.json").read_text())["log_history"]


def tensors(output_dir):
    """Every tensor of the saved model, by name."""
    found = {}
    for path in sorted(Path(output_dir).glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return found
