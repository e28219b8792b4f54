"""Recorder of FastChat's training on tiny models of further families, with one and two processes.

The format is that of `trainer`. The models are those of `tests/support/recorded_models.py`, without dropout.
The bias of keys has no effect on attention: its gradient is rounding, and AdamW makes full steps of it.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from fastchat_runs import LIBRARIES, Run, record
from recording import GOLDEN, Part, Recorder

FAMILIES = ("opt", "gpt2", "gemma2", "mixtral")
ONCE = {"num_train_epochs": 1}
RUNS = {
    f"{family}_{name}": Run(family, "first50", processes, flags)
    for family in FAMILIES
    for name, processes, flags in (
        ("a_cosine", 1, ONCE),
        ("f_two_processes", 2, {**ONCE, "per_device_train_batch_size": 2}),
    )
}


def write(name: str, folder: Path) -> None:
    from recorded_models import write_recorded

    run = RUNS[name]
    with tempfile.TemporaryDirectory() as models:
        write_recorded(run.model, Path(models) / run.model)
        record(run, Path(models), GOLDEN / "trainer" / "data", folder / f"{name}.json")


RECORDER = Recorder(
    libraries=LIBRARIES,
    parts={name: Part((f"{name}.json",), partial(write, name)) for name in RUNS},
    apart=2e-4,
    noise=("k_proj.bias", "c_attn.bias"),
)
