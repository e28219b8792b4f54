"""Runs of FastChat's training as other processes (watched_run.py), for the recorders of its curves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from recording import GOLDEN, write_json

LIBRARIES = {
    "torch": "2.11.0", "transformers": "4.57.6", "fschat": "0.2.36", "accelerate": "1.15.0",
    "sentencepiece": "0.2.3", "safetensors": "0.8.0",
}  # fmt: skip
ALWAYS = {
    "use_cpu": True, "model_max_length": 256, "learning_rate": 2e-3, "logging_steps": 1,
    "lr_scheduler_type": "cosine", "warmup_ratio": 0.03, "weight_decay": 0.0, "num_train_epochs": 2,
    "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "save_strategy": "no",
    "report_to": "none", "disable_tqdm": True,
}  # fmt: skip


class Run(NamedTuple):
    """A run: model directory, data file, number of processes, flags beyond ALWAYS."""

    model: str
    data: str
    processes: int
    flags: dict[str, Any]


def launch(run: Run, flags: dict[str, Any], paths: dict[str, Path], out: Path, adapter: str = "") -> None:
    """Run FastChat's training with the flags, and `paths` in place of flags that name files."""
    command = [sys.executable]
    if run.processes > 1:
        flags = {**flags, "ddp_backend": "gloo"}
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={run.processes}"]
    command += [str(GOLDEN / "watched_run.py"), str(out), adapter]
    for name, value in {**flags, **paths}.items():
        command += [f"--{name}", str(value)]
    threads = str(max(1, (os.cpu_count() or 1) // run.processes))
    more = {"OMP_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(GOLDEN)}
    subprocess.run(command, check=True, env={**os.environ, **more}, stdout=subprocess.DEVNULL)


def record(run: Run, models: Path, data: Path, path: Path) -> None:
    """Write a run as JSON. A run that saves is run again: FastChat resumes it from checkpoint-3."""
    flags = {**ALWAYS, **run.flags, "model_name_or_path": run.model, "data_path": f"data/{run.data}.json"}
    paths = {"model_name_or_path": models / run.model, "data_path": data / f"{run.data}.json"}
    if "eval_strategy" in flags:
        flags["eval_data_path"] = "data/eval20.json"
        paths["eval_data_path"] = data / "eval20.json"
    with tempfile.TemporaryDirectory() as scratch:
        out, output = Path(scratch) / "result.json", Path(scratch) / "out"
        paths["output_dir"] = output
        launch(run, flags, paths, out)
        recorded = json.loads(out.read_text())
        recorded["output_files"] = sorted(
            str(file.relative_to(output)) for file in output.rglob("*") if file.is_file()
        )
        if "save_steps" in flags:
            state = output / "checkpoint-3" / "trainer_state.json"
            recorded["trainer_state"] = json.loads(state.read_text())
            for checkpoint in set(output.glob("checkpoint-*")) - {state.parent}:
                shutil.rmtree(checkpoint)
            launch(run, flags, paths, out)
            recorded["resumed_from_step_3"] = json.loads(out.read_text())
    if run.processes > 1:
        flags["ddp_backend"] = "gloo"
    write_json(path, {"flags": flags, **recorded})
