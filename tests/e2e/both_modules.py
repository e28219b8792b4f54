"""`train()` of FastChat's module and of ours in one process, with the same flags and the same names bound."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import transformers

from e2e.command_line import TRAINER, words

FLAGS = {
    "model_name_or_path": "model_untied", "data_path": "data/first48.json", "use_cpu": True, "max_steps": 3,
    "per_device_train_batch_size": 4, "save_strategy": "no", "learning_rate": 2e-3, "logging_steps": 1,
    "model_max_length": 256, "report_to": "none", "disable_tqdm": True,
}  # fmt: skip
Change = Callable[[ModuleType], None]


@contextmanager
def unrounded() -> Iterator[None]:
    """transformers' Trainer logs losses with all their digits."""
    with mock.patch.object(transformers.trainer, "round", lambda value, _: value, create=True):
        yield


def losses_of(name: str, change: Change, output: Path, **flags: Any) -> list[float]:
    """Losses of the steps of `train()` of the module `name`, whose names `change` binds before."""
    module = importlib.import_module(name)
    before = dict(vars(module))
    ours = {} if name.startswith("fastchat.") else {"plot_loss": False}
    given = {key: value for key, value in {**FLAGS, **ours, **flags}.items() if value is not None}
    argv = ["train.py", "--output_dir", str(output), *words(given)]
    if not ours:
        module.trainer_save_model_safe = lambda trainer: None  # which fails without FSDP
    here = Path.cwd()
    try:
        change(module)
        os.chdir(TRAINER)
        with mock.patch.object(sys, "argv", argv), unrounded():
            module.train()
    finally:
        os.chdir(here)
        vars(module).clear()
        vars(module).update(before)
    history = json.loads((output / "trainer_state.json").read_text())["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry]


def both(change: Change, tmp_path: Path, **flags: Any) -> tuple[list[float], list[float]]:
    """Losses of FastChat's module on transformers' Trainer, and of ours."""
    theirs = losses_of("fastchat.train.train", change, tmp_path / "fastchat", **flags)
    return theirs, losses_of("fastsft.train", change, tmp_path / "fastsft", **flags)
