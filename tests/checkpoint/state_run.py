"""What the ranks of test_ranks.py do: load, save, train, save, and read the state that others wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from fastsft import _C
from tiny_models import STRATEGIES, make_engine, train


def run(groups: dict[str, str], model: Path, work: Path, state: Path) -> None:
    """Writes WORK/<strategy>/{loaded,state,trained,resumed}; `state`: a training state of another run."""
    for strategy in STRATEGIES:
        folder = work / strategy
        for part in ("loaded", "state", "trained", "resumed"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        engine = make_engine(model, strategy=strategy, **groups)
        _C.save_model(engine, str(folder / "loaded"), max_shard_size=10_000)
        train(engine, 2)
        _C.save_training_state(engine, str(folder / "state"))
        _C.save_model(engine, str(folder / "trained"))
        other = make_engine(model, strategy=strategy, **groups)
        _C.load_training_state(other, str(state))
        _C.save_model(other, str(folder / "resumed"))


def outcome(action: Callable[[], Any]) -> str:
    try:
        action()
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def fail(groups: dict[str, str], model: Path, work: Path, state: Path) -> dict[str, str]:
    """Something is wrong for one rank only: both must raise, and the engine must still work afterwards."""
    rank = dist.get_rank()
    engine = make_engine(model, strategy="full_shard", **groups)
    elsewhere = model if rank == 0 else work / "not there"
    outcomes = {
        "load": outcome(lambda: _C.load_model(engine, str(elsewhere))),
        "state": outcome(lambda: _C.load_training_state(engine, str(state if rank else work))),
        "save": outcome(lambda: _C.save_model(engine, str(work / "no directory"))),
    }
    if rank == 0:
        (work / "saved").mkdir()
    _C.load_model(engine, str(model))
    _C.save_model(engine, str(work / "saved"))
    return outcomes
