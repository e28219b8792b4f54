"""TRL, LLaMA-Factory, ms-swift or axolotl, started as its own command starts it, and watched.

usage: PYTHON benchmarks/baselines/framework_trainer.py llamafactory CONFIG --report R

PYTHON has the framework. Writes JSON to R: unrounded losses, versions, and the rows of the first optimizer
step as the model got them, by micro-batch: [ids, labels] without padding. The baseline of
bench_frameworks.py.
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer

PACKAGES = {"trl": "trl", "llamafactory": "llamafactory", "swift": "ms-swift", "axolotl": "axolotl"}


class Watch:
    """What a Trainer computes, whatever class of the framework it is of.

    losses: by step the sum of what `training_step` returns, of which the Trainer makes the logged loss: that
    one is rounded, and ms-swift logs by code of its own.
    """

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}
        self.micro_batches: list[list[list[list[int]]]] = []
        self._step = Trainer.training_step

    def begin(self) -> None:
        watch = self

        def step(trainer: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            number = trainer.state.global_step
            if number == 0:
                watch.micro_batches.append(rows_of(inputs))
            loss = watch._step(trainer, model, inputs, *args, **kwargs)
            watch.losses[number] = watch.losses.get(number, 0.0) + loss.item()
            return loss

        Trainer.training_step = step


def rows_of(inputs: Any) -> list[list[list[int]]]:
    """The rows of a batch without padding."""
    mask = inputs.get("attention_mask")
    mask = torch.ones_like(inputs["input_ids"]) if mask is None else mask
    each = zip(inputs["input_ids"], inputs["labels"], mask.bool(), strict=True)
    return [[ids[kept].tolist(), labels[kept].tolist()] for ids, labels, kept in each]


def trl(config: str) -> None:
    sys.argv = ["sft.py", "--config", config]
    runpy.run_module("trl.scripts.sft", run_name="__main__")


def llamafactory(config: str) -> None:
    from llamafactory.train.tuner import run_exp

    sys.argv = ["train.py", config]
    run_exp()


def swift(config: str) -> None:
    from swift.pipelines import sft_main

    given = json.loads(Path(config).read_text())
    words = [
        word
        for key, value in given.items()
        for word in (f"--{key}", *map(str, value if isinstance(value, list) else [value]))
    ]
    sft_main(words)


def axolotl(config: str) -> None:
    from axolotl.cli.train import do_cli

    do_cli(config)


COMMANDS: dict[str, Callable[[str], None]] = {
    "trl": trl, "llamafactory": llamafactory, "swift": swift, "axolotl": axolotl,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=COMMANDS)
    parser.add_argument("config")
    parser.add_argument("--report", type=Path, required=True)
    args = parser.parse_args()
    watch = Watch()
    watch.begin()
    COMMANDS[args.name](args.config)
    packages = (PACKAGES[args.name], "transformers", "torch")
    losses = [watch.losses[step] for step in sorted(watch.losses)]
    found = {p: version(p) for p in packages}
    report = {"losses": losses, "micro_batches": watch.micro_batches, "versions": found}
    args.report.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
