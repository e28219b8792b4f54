"""Work of each rank of a communication test; run as a program, it is one rank of one."""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

from fastsft.ranks.process_group import join
from fastsft.runtime.launch import launch

_BYTES = 1 << 24
_ROUNDS = 3
CAME, DONE = "came", "exchanged "


def exchange(device: str, seconds: float) -> dict[str, float]:
    """Meet, add known values up, and time it; collective.

    Returns `bytes` and `seconds` of one all_reduce. RuntimeError when ranks do not come within `seconds`, or
    the sum is wrong.
    """
    import torch
    import torch.distributed as dist

    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")

    if device != "cpu":
        torch.cuda.set_device(device)
    groups, place = join(seconds, device), launch()
    group = c10d._resolve_process_group(groups.reduce)
    values = torch.empty(_BYTES // 4, device=device)
    expected = place.world_size * (place.world_size + 1) / 2
    best = float("inf")
    for _ in range(_ROUNDS):
        values.fill_(place.rank + 1.0)
        started = time.monotonic()
        dist.all_reduce(values, group=group)
        lowest, highest = float(values.min()), float(values.max())  # waits for a GPU
        best = min(best, time.monotonic() - started)
        if (lowest, highest) != (expected, expected):
            raise RuntimeError(
                f"rank {place.rank}: an all_reduce of 1 to {place.world_size} gave {lowest} to {highest}, "
                f"expected {expected}"
            )
    return {"bytes": float(_BYTES), "seconds": best}


def main() -> None:
    """Words: device without its number, seconds."""
    print(CAME, flush=True)
    device = sys.argv[1] if sys.argv[1] == "cpu" else f"cuda:{launch().local_rank}"
    print(DONE + json.dumps(exchange(device, float(sys.argv[2]))), flush=True)


if __name__ == "__main__":
    main()
