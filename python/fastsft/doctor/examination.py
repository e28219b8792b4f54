"""Runs the checks of `fastsft doctor` in their order.

A check that raises has failed; later checks still run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator

from fastsft.doctor import communication, configuration, data, disk, machine, model_files
from fastsft.doctor.check import ExaminedRun, Result, as_rank0, examined
from fastsft.runtime.launch import launch

# name -> (check, hint that is printed if the check's error has none)
OF_INSTALLATION: dict[str, tuple[Callable[[], str], str]] = {
    "python": (machine.check_python, ""),
    "torch": (machine.check_torch, ""),
    "GPUs": (machine.check_gpus, "look at nvidia-smi and CUDA_VISIBLE_DEVICES"),
    "threads": (machine.check_threads, ""),
    "extras": (machine.check_extras, ""),
}
OF_RUN: dict[str, tuple[Callable[[ExaminedRun], str], str]] = {
    "configuration": (configuration.check_configuration, ""),
    "model": (model_files.check_model, "name a Hugging Face model directory of a supported family"),
    "weights": (model_files.check_weights, "copy or download the weights again"),
    "tokenizer": (model_files.check_tokenizer_files, "copy or download the tokenizer's files again"),
    "template": (model_files.check_chat_template, "name a --template that fits the tokenizer"),
    "data": (data.check_data, "fastsft inspect shows the records"),
    "eval data": (data.check_eval_data, "fastsft inspect shows the records"),
    "output": (disk.check_output, "choose another --output_dir"),
    "checkpoints": (disk.check_checkpoints, "start from step 0 with --no_resume True"),
    "disk space": (disk.check_space, "choose another --output_dir"),
    "disk rate": (disk.check_write_rate, "choose another --output_dir"),
    "memory": (machine.check_memory, "fastsft plan shows the parts"),
    "communication": (
        communication.check_communication,
        "start the ranks again, and look at the first error",
    ),
}


def examine_installation(skip: Collection[str] = ()) -> Iterator[Result]:
    """Yield the results of the installation's checks. skip: names of checks to leave out."""
    for name, (check, way_out) in OF_INSTALLATION.items():
        if name not in skip:
            yield examined(name, check, way_out)


def examine_run(run: ExaminedRun, skip: Collection[str] = ()) -> Iterator[Result]:
    """Yield the results of a run's checks. skip: names of checks to leave out.

    If a launcher started several ranks, all ranks must call this function, and the communication check comes
    first.
    """
    done: dict[str, Result] = {}
    if launch().world_size > 1 and "communication" not in skip:
        check, way_out = OF_RUN["configuration"]
        first = examined("configuration", lambda: check(run), way_out)
        talk, out = OF_RUN["communication"]
        done = {"configuration": first, "communication": examined("communication", lambda: talk(run), out)}
    for name, (look, way_out) in OF_RUN.items():
        if name == "configuration" or name not in skip:
            yield done.get(name) or _of_run(name, look, way_out, run)


def _of_run(name: str, check: Callable[[ExaminedRun], str], way_out: str, run: ExaminedRun) -> Result:
    alone = contextlib.nullcontext() if name == "communication" else as_rank0(run.ranks)
    with alone:
        return examined(name, lambda: check(run), way_out)
