"""Steps of the generic engine next to steps of a plain torch loop, in alternation in one process, on the CPU.

usage: python benchmarks/bench_generic_steps.py --kind gpt2 [--padded_to 2048] [--threads 1]

bench_generic.py has processes of their own, and their memory; here each side makes one step in turn, so that
other work of the machine meets all alike. Printed: the median and the smallest processor seconds of a step,
and the smallest as a ratio of the plain loop's. The plain loop computes `--micro_batch` conversations at
once, padded to `--padded_to` (0: to the longest of them), with torch's AdamW, as the Hugging Face Trainer
does on one rank. `native` is there for llama. Losses of all sides must agree at every step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parent / "baselines"))
from stream_trainer import pad

import bench_step
from bench_generic import config_of, options_of
from fastsft import _C
from fastsft.model.generic.empty_model import empty_model
from fastsft.model.generic.generic_model import GenericModel
from fastsft.model.generic.packing_trial import why_padded
from harness import check_losses

RATE, TOLERANCE = 1e-4, 2e-4
Step = Callable[[], float]


def plain_loop(model: Any, rows: list[Any], options: argparse.Namespace) -> Step:
    """One step of torch's AdamW over `rows`."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    tokens = torch.tensor(sum(learned for _, learned in rows))

    def step() -> float:
        total = 0.0
        for begin in range(0, len(rows), options.micro_batch):
            batch = pad(rows[begin : begin + options.micro_batch], options.padded_to or None)
            loss = model(**batch, use_cache=False, num_items_in_batch=tokens).loss
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step


def engine_step(engine: Any, dataset: Any, options: argparse.Namespace) -> Step:
    """The same step by an engine."""
    share = 1.0 / np.asarray(dataset.target_counts()).sum()
    batches = np.split(np.arange(len(dataset)), range(options.micro_batch, len(dataset), options.micro_batch))
    weights = [np.full(len(batch), share) for batch in batches]

    def step() -> float:
        engine.begin_step(dataset, batches, weights, learning_rate=RATE, max_grad_norm=1.0)
        return float(engine.take_results(all=True)[0].loss)

    return step


def engines(model: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Engines with the weights of `model`."""
    config = json.loads(model.config.to_json_string(use_diff=False))

    def generic(packs: bool) -> Any:
        called = GenericModel(empty_model(config, torch.float32), device="cpu", recompute=False, packs=packs)
        return _C.Engine(json.dumps(config), model=called.called(), num_threads=options.threads)

    made = {"generic, padded": generic(False)}
    why = why_padded(lambda small: empty_model(small, torch.float32), model)
    if why is None:
        made["generic, no padding"] = generic(True)
    if options.kind == "llama":
        made["native"] = _C.Engine(json.dumps(config), num_threads=options.threads, recompute="none")
    for engine in made.values():
        for name, value in model.named_parameters():
            engine.set_parameter(name, value.detach())
        engine.publish()
    return made


def main() -> None:
    options = options_of(__doc__)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    shape = AutoConfig.for_model(options.kind, vocab_size=options.vocab, pad_token_id=0, **config_of(options))
    model = AutoModelForCausalLM.from_config(shape, dtype=torch.float32).train()
    dataset, lengths = bench_step.workload(options.workload, options.rows, options.longest, options.vocab)
    learned = np.asarray(dataset.target_counts()).tolist()
    rows = [(dataset.ids(row).tolist(), learned[row]) for row in range(options.rows)]
    sides = {name: engine_step(each, dataset, options) for name, each in engines(model, options).items()}
    sides = {"plain loop": plain_loop(model, rows, options), **sides}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(options.warm_up + options.steps):
        losses = {}
        for name, step in sides.items():
            begin = time.process_time()
            losses[name] = step()
            if number >= options.warm_up:
                seconds[name].append(time.process_time() - begin)
        check_losses([losses["plain loop"]] * len(losses), list(losses.values()), TOLERANCE)
    best, width = min(seconds["plain loop"]), options.padded_to or "the longest"
    print(f"{options.kind}: tokens of the rows {lengths}, plain loop padded to {width}")
    for name, each in seconds.items():
        least = min(each)
        print(f"{name:<22}median {statistics.median(each):.3f} s, least {least:.3f} s, x{best / least:.2f}")


if __name__ == "__main__":
    main()
