"""Send a changing model's weights from rank 0 to the other ranks, twice in every mode.

usage: RANK=... WORLD_SIZE=... python synced_weights.py FOLDER [FILE:LINE]

FILE:LINE: a line of fastsft/weight_sync that waits for an operation of the group; it is left out.
The sender changes its weights as soon as a sync returns, as training does. A receiver compares them with its
own model of the same seed. At last receivers expect another model, which all ranks refuse by its difference.
Prints the modes whose weights were all right, and "refused", as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fastsft.weight_sync import WeightGroup, WeightReceiver, fsdp_sync_weight_nccl, sync_plan
from fastsft.weight_sync.groups import Transport
from fastsft.weight_sync.modes import MODES
from weight_sync_parts.modules import make_engine, make_model
from weight_sync_parts.receivers import Loaded

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
SYNCS = 2
ROWS_OF_ANOTHER = 13
OPTIONS: dict[str, Any] = {"bucket_bytes": 96, "deadline_s": 60.0}


def change(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2).add_(1)


def send(group: WeightGroup, model: torch.nn.Module) -> list[str]:
    engine = make_engine(model.cuda(), "plain")
    for mode in sorted(MODES):
        for _ in range(SYNCS):
            change(model)
            fsdp_sync_weight_nccl(engine, group, mode=mode, **OPTIONS)
    change(model)
    torch.cuda.synchronize()
    return sorted(MODES) + refused(lambda: fsdp_sync_weight_nccl(engine, group, mode="native", **OPTIONS))


def receive(group: WeightGroup, model: torch.nn.Module) -> list[str]:
    plan, right = sync_plan(make_engine(model, "plain")), []
    for mode in sorted(MODES):
        loaded = Loaded()
        groups = [group] if MODES[mode].every_rank else group
        receiver = WeightReceiver(groups, plan, loaded, mode=mode, device=f"cuda:{RANK}", **OPTIONS)
        equal = True
        for _ in range(SYNCS):
            change(model)
            loaded.tensors.clear()
            receiver.receive()
            received, expected = dict(loaded.tensors), model.state_dict()
            assert received.keys() == set(plan.names)
            assert all(tensor.is_cuda for tensor in received.values())
            equal &= all(torch.equal(tensor.cpu(), expected[name]) for name, tensor in received.items())
        right += [mode] * equal
    other = sync_plan(make_engine(make_model(False, rows=ROWS_OF_ANOTHER), "plain"))
    receiver = WeightReceiver(group, other, Loaded(), mode="native", device=f"cuda:{RANK}", **OPTIONS)
    return right + refused(receiver.receive)


def refused(sync: Callable[[], object]) -> list[str]:
    """Return that a sync was refused, if the error has the shape of the receivers' embedding."""
    try:
        sync()
    except RuntimeError as error:
        return ["refused"] * (f"[{ROWS_OF_ANOTHER}, 4]" in str(error))
    return []


def leave_out(place: str) -> None:
    """Let the group take an operation for done that its caller waits for at this line."""
    whole = Transport.wait

    def wait(group: Transport, work: Any, what: str) -> None:
        caller = sys._getframe(1)
        if f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}" == place:
            group._in_flight.pop(id(work), None)
        else:
            whole(group, work, what)

    Transport.wait = wait  # type: ignore[method-assign]


def main() -> None:
    if len(sys.argv) > 2:
        leave_out(sys.argv[2])
    torch.cuda.set_device(RANK)
    store = dist.FileStore(str(Path(sys.argv[1], "weights.store")), WORLD_SIZE)
    group = WeightGroup(store, RANK, WORLD_SIZE, backend="nccl", timeout_s=60.0)
    done = (send if RANK == 0 else receive)(group, make_model(False))
    print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
