"""FastChat's data module and the Hugging Face Trainer, watched: the baseline of bench_train.py.

usage: python benchmarks/baselines/fastchat_trainer.py --report R --started <unix time> --threads 2 -- <flags>

Runs fastchat.train.train.train() with the flags after `--` and writes JSON to R: unrounded losses, real
tokens, wall and processor time at the end of each optimizer step, seconds from `--started` to the end of
the first step, and peak resident bytes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from fastchat.train import train
from transformers import Trainer, TrainerCallback

from harness import peak_resident_bytes


class Watch(TrainerCallback):
    """Time at the end of each optimizer step, and the peak memory before anything is saved."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.processor: list[float] = []  # seconds of all threads
        self.peak = 0

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.times.append(time.time())
        self.processor.append(time.process_time())

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self.peak = peak_resident_bytes()


class WatchedTrainer(Trainer):
    """Looks on: losses before they are rounded, and tokens that are not padding."""

    last: WatchedTrainer

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.watch, self.losses, self.tokens = Watch(), [], {}
        self.add_callback(self.watch)
        WatchedTrainer.last = self

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        step = self.state.global_step
        self.tokens[step] = self.tokens.get(step, 0) + int(inputs["attention_mask"].sum())
        return super().training_step(model, inputs, num_items_in_batch)

    def _maybe_log_save_evaluate(self, tr_loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        if self.control.should_log and self.state.global_step > self._globalstep_last_logged:
            self.losses.append(tr_loss.item() / (self.state.global_step - self._globalstep_last_logged))
        super()._maybe_log_save_evaluate(tr_loss, *args, **kwargs)


def main(arguments: Sequence[str], kind: type[WatchedTrainer] = WatchedTrainer) -> None:
    split = list(arguments).index("--")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--started", type=float, required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args(arguments[:split])
    torch.set_num_threads(args.threads)
    sys.argv = ["train.py", *arguments[split + 1 :]]
    train.Trainer = kind
    # FastChat's own safe save fails on a model that is not wrapped in FSDP; nothing here needs the result.
    train.trainer_save_model_safe = lambda trainer: None
    train.train()
    trainer = WatchedTrainer.last
    report = {
        "losses": trainer.losses,
        "tokens": [trainer.tokens[step] for step in sorted(trainer.tokens)],
        "times": trainer.watch.times,
        "processor": trainer.watch.processor,
        "first_step_seconds": trainer.watch.times[0] - args.started,
        "peak_resident_bytes": trainer.watch.peak,
    }
    args.report.write_text(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1:])
