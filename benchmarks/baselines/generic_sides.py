"""One rank of a side of bench_generic.py: fastsft's Trainer, transformers' Trainer, or torch's fully_shard.

usage: python benchmarks/baselines/generic_sides.py --side fsdp2 --model M --stream S --report R ...

All take the conversations in order, `--rows` an optimizer step over all ranks, with AdamW in float32 and no
recomputing. Rank 0 writes losses before rounding, seconds of each step, and the peak resident memory of the
largest rank.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from stream_trainer import Rows, pad, read_stream, watched

from harness import peak_resident_bytes

RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
RATE = 1e-4


class Clock:
    """Wall and processor seconds of this rank, at the begin and at the end of each step."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []

    def note(self) -> None:
        self.times.append((time.perf_counter(), time.process_time()))


def common(options: argparse.Namespace) -> dict[str, Any]:
    """Arguments of both Trainers."""
    return {
        "output_dir": str(options.report.with_suffix(".out")), "use_cpu": True,
        "per_device_train_batch_size": options.micro_batch,
        "gradient_accumulation_steps": options.rows // options.micro_batch // RANKS,
        "max_steps": options.steps, "learning_rate": RATE, "lr_scheduler_type": "constant",
        "weight_decay": 0.0, "max_grad_norm": 1.0, "logging_steps": 1, "save_strategy": "no",
        "disable_tqdm": True,
    }  # fmt: skip


def fastsft_side(options: argparse.Namespace, clock: Clock) -> list[float]:
    from fastsft.arguments import TrainingArguments
    from fastsft.callbacks import TrainerCallback
    from fastsft.trainer import Trainer

    class Watch(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            clock.note()

        on_step_end = on_train_begin

    args = TrainingArguments(
        **common(options), engine=options.side, train_sampling_strategy="sequential",
        recompute="none", model_max_length=options.longest,
        micro_batch_tokens=options.micro_batch * options.longest, plot_loss=False, report_to="none",
        fsdp=options.fsdp,
    )  # fmt: skip
    items = []
    for ids, learned in read_stream(options.stream):
        labels = [-100] * (len(ids) - learned) + ids[len(ids) - learned :]
        items.append({"input_ids": ids, "labels": labels})
    trainer = Trainer(model=str(options.model), args=args, train_dataset=items, callbacks=[Watch()])
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def trainer_side(options: argparse.Namespace, clock: Clock) -> list[float]:
    from transformers import Trainer, TrainingArguments, default_data_collator

    rows = read_stream(options.stream)
    padded = options.padded_to > 0
    args = TrainingArguments(
        **common(options), remove_unused_columns=False, report_to="none", dataloader_pin_memory=False,
        ddp_backend="gloo" if RANKS > 1 else None,
    )  # fmt: skip
    trainer = watched(Trainer, "cpu")(
        model=library_model(options), args=args,
        train_dataset=Rows(rows, options.padded_to) if padded else rows,
        data_collator=default_data_collator if padded else pad,
    )  # fmt: skip
    trainer.watch._note = clock.note
    trainer.train()
    return trainer.losses  # type: ignore[no-any-return]


def library_model(options: argparse.Namespace) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    model.config.use_cache = False
    return model.train()


def fsdp2_side(options: argparse.Namespace, clock: Clock) -> list[float]:
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo") if RANKS > 1 else dist.init_process_group(
        "gloo", store=dist.HashStore(), rank=0, world_size=1
    )
    mesh = dist.init_device_mesh("cpu", (RANKS,))
    model = library_model(options)
    for module in list(model.modules()):
        if type(module).__name__ in set(model._no_split_modules):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    rows, losses = read_stream(options.stream), []
    clock.note()
    for first in range(0, options.rows * options.steps, options.rows):
        losses.append(_step(model, optimizer, rows[first : first + options.rows], options))
        clock.note()
    return losses


def _step(model: Any, optimizer: Any, rows: list[Any], options: argparse.Namespace) -> float:
    size = options.micro_batch
    tokens, total = sum(learned for _, learned in rows), torch.zeros(())
    for begin in range(RANK * size, len(rows), RANKS * size):
        batch = pad(rows[begin : begin + size], options.padded_to or None)
        model.set_requires_gradient_sync(begin + RANKS * size >= len(rows))
        loss = model(**batch, use_cache=False, num_items_in_batch=torch.tensor(tokens)).loss
        (loss * RANKS).backward()  # gradients of ranks are averaged
        total += loss.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(total)
    return float(total)


SIDES = {"native": fastsft_side, "generic": fastsft_side, "trainer": trainer_side, "fsdp2": fsdp2_side}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--side", choices=SIDES, required=True)
    for name in ("model", "stream", "report"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--fsdp", default="")
    for name in ("rows", "micro_batch", "steps", "padded_to", "threads", "longest"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = Clock()
    losses = SIDES[options.side](options, clock)
    seconds, processor = np.diff(np.array(clock.times), axis=0).T.tolist()
    report = {
        "losses": losses, "seconds": seconds, "processor_seconds": processor,
        "peak_memory": peak_resident_bytes(),
    }  # fmt: skip
    options.report.with_suffix(f".{RANK}").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
