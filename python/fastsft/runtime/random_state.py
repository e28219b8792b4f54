"""Save and restore the random states of Python, numpy and torch as JSON, without pickle."""

from __future__ import annotations

import base64
import random
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fastsft.runtime.regular_files import read_json

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

_MOST_STATE_BYTES = 1 << 20  # the state of torch's CPU generator has 5 KB
_DAMAGED = (AttributeError, LookupError, TypeError, ValueError, RuntimeError, OverflowError, zlib.error)


def random_state_name(rank: int) -> str:
    """Return the name of the file with a rank's random states."""
    return f"random-state-rank-{rank:05d}.json"


# The generator's name, its keys, its position in the keys, 1 if a normally distributed value is cached, and
# the cached value.
NumpyState = tuple[str, "npt.NDArray[np.uint32]", int, int, float]


class RandomState(NamedTuple):
    """The states of the global random generators of Python, numpy and torch (CPU) in this process."""

    python: tuple[Any, ...]
    numpy: NumpyState | dict[str, Any]  # a dictionary if the generator is not MT19937
    torch: torch.Tensor

    @classmethod
    def now(cls) -> RandomState:
        """Return the present states, within a few microseconds."""
        import numpy as np
        import torch

        return cls(random.getstate(), np.random.get_state(legacy=True), torch.get_rng_state())

    def set(self) -> None:
        """Set the generators to these states."""
        import numpy as np
        import torch

        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch)

    def to_json(self) -> dict[str, Any]:
        """Return the states as JSON values. ValueError if numpy's global generator is not MT19937."""
        if isinstance(self.numpy, dict):
            raise ValueError(
                f"numpy.random.set_bit_generator: expected MT19937, whose state a checkpoint can hold, got "
                f"{self.numpy.get('bit_generator')}; make a numpy.random.Generator of it instead"
            )
        version, internal, gauss = self.python
        kind, keys, position, has_gauss, cached = self.numpy
        return {
            "python": [version, list(internal), gauss],
            "numpy": [str(kind), keys.tolist(), int(position), int(has_gauss), float(cached)],
            "torch": _pack(self.torch),
        }

    @classmethod
    def from_json(cls, states: dict[str, Any]) -> RandomState:
        """Return the states from the values of `to_json`."""
        import numpy as np

        version, internal, gauss = states["python"]
        kind, keys, position, has_gauss, cached = states["numpy"]
        return cls(
            (version, tuple(internal), gauss),
            (kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached),
            _unpack(states["torch"]),
        )


def read_random_states() -> dict[str, Any]:
    """Return the present states as JSON values, including the GPU's state if a CUDA context exists."""
    import torch

    states = RandomState.now().to_json()
    # Reading the state of an unused GPU would create a CUDA context, which takes hundreds of MB.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = _pack(torch.cuda.get_rng_state())
    return states


def saved_random_states(directory: str | Path, rank: int) -> dict[str, Any] | None:
    """Return the states from the file of `rank`. ValueError if the file is damaged.

    None if there is no file, for example because the checkpoint was written by fewer ranks.
    """
    path = Path(directory) / random_state_name(rank)
    if not path.exists():
        return None
    try:
        states: dict[str, Any] = read_json(path)
        RandomState.from_json(states)
        for state in (states.get("reading") or {}).values():
            if state is not None:
                RandomState.from_json(state)
    except _DAMAGED as error:
        raise ValueError(f"{path}: not the random states of a checkpoint ({error})") from error
    return states


def restore_random_state(directory: str | Path, rank: int) -> bool:
    """Restore the states from the file of `rank`, and return True; return False if there is no file.

    ValueError if the file is damaged.
    """
    import torch

    states = saved_random_states(directory, rank)
    if states is None:
        return False
    try:
        RandomState.from_json(states).set()
        if "cuda" in states and torch.cuda.is_available():
            # If there is no CUDA context yet, torch delays this call until the context is created.
            torch.cuda.set_rng_state(_unpack(states["cuda"]))
    except _DAMAGED as error:
        path = Path(directory) / random_state_name(rank)
        raise ValueError(f"{path}: not the random states of a checkpoint ({error})") from error
    return True


def _pack(state: torch.Tensor) -> str:
    return base64.b64encode(zlib.compress(state.numpy().tobytes())).decode("ascii")


def _unpack(text: str) -> torch.Tensor:
    import torch

    state = zlib.decompressobj().decompress(base64.b64decode(text), _MOST_STATE_BYTES)
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
