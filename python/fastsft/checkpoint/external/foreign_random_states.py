"""Random states in a checkpoint of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastsft.checkpoint.external.transformers_checkpoint import load_plain
from fastsft.runtime.plain_pickle import Inert, Maker
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
    states = load_plain(path, _WHAT, _NUMPY.get)
    try:
        return _checked(states)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{path}: expected {_WHAT} ({type(error).__name__}: {error})") from error


def _checked(states: Any) -> RandomState:
    """Tried on generators of their own: the global ones stay as they are."""
    import random

    version, internal, gauss = states["python"]
    found = RandomState((version, tuple(internal), gauss), _numpy_state(states["numpy"]), states["cpu"])
    random.Random().setstate(found.python)
    np.random.RandomState().set_state(found.numpy)
    torch.Generator().set_state(found.torch)
    return found


def _numpy_state(state: Any) -> tuple[Any, ...]:
    name, keys, *rest = state
    return (name, keys.values(), *rest)


class _Dtype(Inert):
    """A substitute for numpy.dtype, made as dtype("u4", False, True)."""


class _Array(Inert):
    """A substitute for numpy.ndarray; `arguments` ends with (version, shape, dtype, is_fortran, bytes)."""

    def values(self) -> np.ndarray[Any, np.dtype[Any]]:
        state: Any = self.arguments[-1]
        _, shape, kind, _, content = state
        if kind.arguments[0] not in ("u4", "u8", "i4", "i8") or not isinstance(content, bytes):
            raise ValueError("expected an array of integers")
        return np.frombuffer(content, dtype=f"<{kind.arguments[0]}").reshape(shape)


# numpy 1 and 2 have other names for the function that makes an array.
_NUMPY = {
    "numpy.ndarray": _Array,
    "numpy.dtype": Maker(_Dtype),
    "numpy.core.multiarray._reconstruct": Maker(_Array),
    "numpy._core.multiarray._reconstruct": Maker(_Array),
}
