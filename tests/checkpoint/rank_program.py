"""One rank of a small gloo run: load, save, train, save, and read the state that other ranks wrote.

Usage: rank_program.py RANK WORLD_SIZE MODE MODEL WORK STATE. STATE is a training state of another run. Mode
`run` writes WORK/<strategy>/{loaded,state,trained,resumed}; `failures` lets one rank fail and writes what
each one raised.
"""

import dataclasses
import os
import sys
from pathlib import Path

import torch.distributed as dist

from fastsft import _C, launcher
from tiny_models import STRATEGIES, make_engine, train


def groups() -> dict[str, str]:
    """All ranks; four of them are two nodes of two."""
    if dist.get_world_size() == 1:
        return {}
    names = launcher.join(60, node_size=2 if dist.get_world_size() == 4 else 0)
    return {f"{kind}_group": name for kind, name in dataclasses.asdict(names).items()}


def run(rank: int, model: Path, work: Path, state: Path) -> None:
    names = groups()
    for strategy in STRATEGIES:
        folder = work / strategy
        for part in ("loaded", "state", "trained", "resumed"):
            if rank == 0:
                (folder / part).mkdir(parents=True)
        dist.barrier()
        engine = make_engine(model, strategy=strategy, **names)
        _C.save_model(engine, str(folder / "loaded"), max_shard_size=10_000)
        train(engine, 2)
        _C.save_training_state(engine, str(folder / "state"))
        _C.save_model(engine, str(folder / "trained"))
        other = make_engine(model, strategy=strategy, **names)
        _C.load_training_state(other, str(state))
        _C.save_model(other, str(folder / "resumed"))


def expect_failure(work: Path, name: str, action) -> None:
    try:
        action()
        outcome = "no error"
    except (ValueError, RuntimeError) as error:
        outcome = f"{type(error).__name__}: {error}"
    (work / f"{name}-{dist.get_rank()}.txt").write_text(outcome)


def run_failures(rank: int, model: Path, work: Path, state: Path) -> None:
    """Something is wrong for one rank only: both must raise, and the engine must still work afterwards."""
    engine = make_engine(model, strategy="full_shard", **groups())
    elsewhere = model if rank == 0 else work / "not there"
    expect_failure(work, "load", lambda: _C.load_model(engine, str(elsewhere)))
    expect_failure(work, "state", lambda: _C.load_training_state(engine, str(state if rank else work)))
    expect_failure(work, "save", lambda: _C.save_model(engine, str(work / "no directory")))
    if rank == 0:
        (work / "saved").mkdir()
    _C.load_model(engine, str(model))
    _C.save_model(engine, str(work / "saved"))


def main() -> None:
    rank, world_size = int(sys.argv[1]), int(sys.argv[2])
    mode, model, work, state = sys.argv[3], *map(Path, sys.argv[4:7])
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
    dist.init_process_group("gloo", init_method=f"file://{work}/meet", rank=rank, world_size=world_size)
    {"run": run, "failures": run_failures}[mode](rank, model, work, state)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
