"""Measure the memory that engines take on the device, one after the other.

usage: python planned_steps.py CASES

CASES: a JSON object of {name: {"config": a config.json, "sizes": arguments of Engine.reserve, "options": of
the engine}}. Prints a JSON object of each case's peak on the device and inputs on the host, in bytes.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from engines import new_engine, train_step
from fastsft import _C
from runs import random_dataset


def train(case: dict[str, Any]) -> dict[str, int]:
    """Reserve the case's memory and compute a small step."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    engine: _C.Engine = new_engine(json.dumps(case["config"]), device="cuda:0", **case["options"])
    engine.reserve(**case["sizes"])
    dataset = random_dataset(4, case["config"]["vocab_size"], 20)
    train_step(engine, dataset, [[0, 1], [2, 3]], [[0.1] * 2] * 2, learning_rate=1e-4)
    peak = torch.cuda.max_memory_allocated() - before
    return {"device": peak, "host": engine.memory()["inputs on the host"]}


def main() -> None:
    torch.cuda.set_device(0)
    cases = json.loads(sys.argv[1])
    train(next(iter(cases.values())))  # workspaces of the libraries stay allocated
    print(json.dumps({name: train(case) for name, case in cases.items()}))


if __name__ == "__main__":
    main()
