"""Random states in a checkpoint of transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastsft.checkpoint.external.transformers_checkpoint import load_plain
from fastsft.runtime.random_state import RandomState

_WHAT = "the random states that transformers saved"


def random_state_file(directory: Path, rank: int, world_size: int) -> Path | None:
    """The file of this rank; None where the checkpoint is of another number of ranks, or has none."""
    found = sorted(directory.glob("rng_state*.pth"))
    alone = directory / "rng_state.pth"
    expected = [alone] if world_size == 1 else [directory / f"rng_state_{r}.pth" for r in range(world_size)]
    return expected[rank] if set(found) == set(expected) else None


def read_foreign_states(path: Path) -> RandomState:
    """Of Python, numpy and torch. ValueError when the file holds something else."""
    with torch.serialization.safe_globals(_numpy_names()):
        states = load_plain(path, _WHAT)
    try:
        return _checked(states)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{path}: expected {_WHAT} ({type(error).__name__}: {error})") from error


def _checked(states: Any) -> RandomState:
    """Tried on generators of their own: the global ones stay as they are."""
    import random

    version, internal, gauss = states["python"]
    found = RandomState((version, tuple(internal), gauss), tuple(states["numpy"]), states["cpu"])
    random.Random().setstate(found.python)
    np.random.RandomState().set_state(found.numpy)
    torch.Generator().set_state(found.torch)
    return found


def _numpy_names() -> list[Callable[..., Any] | tuple[Callable[..., Any], str]]:
    """The parts of numpy that its pickled arrays are made with (transformers.trainer.safe_globals)."""
    core = getattr(np, "_core", None) or np.core
    return [core.multiarray._reconstruct, np.ndarray, np.dtype, type(np.dtype(np.uint32))]
