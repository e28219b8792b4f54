"""A rank of test_lost_ranks.py: trains for ever, or stays away from step 3."""

from __future__ import annotations

import argparse
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch.distributed as dist

from engines import new_engine, train_step
from fastsft.program.main import run_script
from fastsft.ranks import process_group as launcher
from fastsft.runtime.launch import launch
from runs import random_dataset
from shard.test_strategies import ROWS, VOCAB, config, initialise


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--watchdog", type=float, default=0)
    parser.add_argument("--absent", type=int, default=-1, help="rank that sleeps before step 3")
    return parser.parse_args()


def train() -> None:
    given, place = options(), launch()
    store = dist.FileStore(str(given.folder / "store"), place.world_size)
    ours = {"store": store, "rank": place.rank, "world_size": place.world_size}
    dist.init_process_group("gloo", timeout=timedelta(seconds=given.timeout), **ours)
    groups = launcher.join(given.timeout)
    engine = new_engine(
        config(False), strategy="full_shard", gather_group=groups.gather, reduce_group=groups.reduce,
        timeout_seconds=given.watchdog,
    )  # fmt: skip
    initialise(engine)
    dataset, rows = random_dataset(ROWS, VOCAB, 40), np.arange(ROWS)[place.rank :: place.world_size]
    for step in range(1, 100_000):
        if step == 3 and place.rank == given.absent:
            time.sleep(600)
        train_step(engine, dataset, [rows], [np.full(len(rows), 1 / 200)], learning_rate=1e-4)
        if step == 3:
            (given.folder / f"rank-{place.rank}-step-3").touch()


if __name__ == "__main__":
    run_script(train)
