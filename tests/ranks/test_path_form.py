"""Training modules started by the path of their file, as torchrun and deepspeed do, and under `-m`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e.command_line import PACKAGE, TRAINER, words
from fastsft.cli.main import main
from fastsft.ranks.store import HeldPort

FLAGS: dict[str, Any] = {
    "model_name_or_path": "model_untied", "data_path": "data/first48.json", "use_cpu": True, "max_steps": 2,
    "per_device_train_batch_size": 4, "save_strategy": "no", "logging_steps": 1, "model_max_length": 256,
    "plot_loss": False,
}  # fmt: skip
PYTHON = [sys.executable]
TORCHRUN = [*PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
ACCELERATE = [
    *PYTHON,
    "-m",
    "accelerate.commands.launch",
    "--cpu",
    "--num_processes=1",
    "--mixed_precision=no",
]


def run(command: list[str], output: Path, **environment: str) -> list[float]:
    """Losses of the run; the environment has no PYTHONPATH, so that the file finds its package by itself."""
    hidden = {"PYTHONPATH", "RANK", "WORLD_SIZE", "LOCAL_RANK"}
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        [*command, "--output_dir", str(output), *words(FLAGS)], cwd=TRAINER, capture_output=True, text=True,
        env={**env, "OMP_NUM_THREADS": "1", **environment}, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    history = json.loads((output / "trainer_state.json").read_text())["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry]


def file_of(name: str) -> str:
    return str(PACKAGE / "fastsft" / f"{name}.py")


@pytest.mark.parametrize("name", ["train", "train_mem", "train_xformers"])
def test_the_path_is_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["path", name]) == 0
    assert capsys.readouterr().out == f"{file_of(name)}\n"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    command = [*PYTHON, "-m", "fastsft.train"]
    return run(command, tmp_path_factory.mktemp("alone"), PYTHONPATH=str(PACKAGE))


@pytest.mark.variants("[train_mem]")
@pytest.mark.parametrize("name", ["train", "train_mem"])
def test_python_and_a_path(name: str, tmp_path: Path, alone: list[float]) -> None:
    assert run([*PYTHON, file_of(name)], tmp_path) == alone


def test_deepspeeds_launcher(tmp_path: Path, alone: list[float]) -> None:
    """What deepspeed.launcher.launch starts on each GPU: the place in the environment, and --local_rank."""
    port = HeldPort()
    try:
        place = {
            "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_SIZE": "1", "CROSS_RANK": "0",
            "CROSS_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port.number),
        }  # fmt: skip
        command = [*PYTHON, "-u", file_of("train_mem"), "--local_rank=0"]
        assert run(command, tmp_path / "path", **place) == alone
        command = [*PYTHON, "-u", "-m", "fastsft.train_mem", "--local_rank=0"]
        assert run(command, tmp_path / "module", **place, PYTHONPATH=str(PACKAGE)) == alone
    finally:
        port.close()


@pytest.mark.variants("[module]")
@pytest.mark.parametrize("form", ["path", "module"])
def test_accelerate(form: str, tmp_path: Path, alone: list[float]) -> None:
    program = [file_of("train_mem")] if form == "path" else ["--module", "fastsft.train_mem"]
    environment = {} if form == "path" else {"PYTHONPATH": str(PACKAGE)}
    assert run([*ACCELERATE, *program], tmp_path, **environment) == alone


def test_torchrun_and_a_path(tmp_path: Path) -> None:
    by_path = run([*TORCHRUN, file_of("train_mem")], tmp_path / "path")
    by_name = run([*TORCHRUN, "-m", "fastsft.train_mem"], tmp_path / "name", PYTHONPATH=str(PACKAGE))
    assert len(by_path) == 2 and by_path == by_name


def test_names_of_the_package_hide_no_others(tmp_path: Path) -> None:
    """`profile` and `tokenizers` are modules of others, too."""
    code = (
        "import sys, runpy; sys.argv = [{0!r}, '--help']; sys.path.insert(0, {1!r})\n"
        "try: runpy.run_path({0!r}, run_name='__main__')\nexcept SystemExit: pass\n"
        "import profile, tokenizers\nprint(profile.__file__, tokenizers.__file__)"
    )
    file = file_of("train")
    command = [*PYTHON, "-c", code.format(file, str(Path(file).parent))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "/fastsft/" not in done.stdout.splitlines()[-1]
