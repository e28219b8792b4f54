"""Random states of Python, numpy and torch as JSON: no pickle in a checkpoint."""

from __future__ import annotations

import base64
import random
import zlib
from pathlib import Path
from typing import Any

from fastsft.regular_files import read_json

_MOST_STATE_BYTES = 1 << 20  # torch's has 5 KB


def random_state_name(rank: int) -> str:
    """The file of one rank."""
    return f"random-state-rank-{rank:05d}.json"


def read_random_states() -> dict[str, Any]:
    """The states of this process, as plain JSON values."""
    import numpy as np
    import torch

    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    states: dict[str, Any] = {
        "python": [version, list(internal), gauss],
        "numpy": [str(kind), np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        "torch": _pack(torch.get_rng_state()),
    }
    # Asking a GPU that nobody has used would make a context on it, hundreds of MB large.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = _pack(torch.cuda.get_rng_state())
    return states


def restore_random_state(directory: str | Path, rank: int) -> bool:
    """Set the states of this rank's file. False when there is none, as after a change of the number of ranks.

    ValueError when the file is damaged.
    """
    import numpy as np
    import torch

    path = Path(directory) / random_state_name(rank)
    if not path.exists():
        return False
    try:
        states = read_json(path)
        version, internal, gauss = states["python"]
        random.setstate((version, tuple(internal), gauss))
        kind, keys, position, has_gauss, cached = states["numpy"]
        np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
        torch.set_rng_state(_unpack(states["torch"]))
        if "cuda" in states and torch.cuda.is_available():
            # Without a context this only queues: the state is set when somebody makes one.
            torch.cuda.set_rng_state(_unpack(states["cuda"]))
    except (LookupError, TypeError, ValueError, RuntimeError, OverflowError, zlib.error) as error:
        raise ValueError(f"{path}: not the random states of a checkpoint ({error})") from error
    return True


def _pack(state: Any) -> str:
    return base64.b64encode(zlib.compress(state.numpy().tobytes())).decode("ascii")


def _unpack(text: str) -> Any:
    import torch

    state = zlib.decompressobj().decompress(base64.b64decode(text), _MOST_STATE_BYTES)
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
