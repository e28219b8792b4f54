"""What the ranks of a test of uploading do."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from fastsft.weight_sync import Synchronizer, fsdp_upload_state_dict
from weight_sync_parts.modules import make_engine, make_model, state_of_model, wrap
from weight_sync_parts.save_world import KINDS, LOGGER


class PlainSynchronizer:
    """Trinity's: takes a real dict, and checks nothing."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, int]] = []

    def set_model_state_dict(self, state_dict: Any, trainer_step: int) -> None:
        self.calls.append((state_dict, trainer_step))


def everything(_: Any) -> dict[str, Any]:
    """Every wrapper, tied or not, to both kinds of synchronizer."""
    outcome: dict[str, Any] = {}
    for kind in KINDS:
        for tied in (False, True):
            model = make_model(tied)
            expected = state_of_model(model)
            engine = make_engine(wrap(model, kind), kind)
            plain, ours = PlainSynchronizer(), Synchronizer()
            fsdp_upload_state_dict(engine, plain, 0, LOGGER)
            fsdp_upload_state_dict(engine, plain, 1, LOGGER)
            fsdp_upload_state_dict(engine, ours, 2, LOGGER, bucket_bytes=128)
            outcome[f"{kind}-{tied}"] = {
                "expected": expected,
                "plain": plain.calls,
                "packed": ours.get_model_state_dict(),
                "meta": ours.get_state_dict_meta(),
                "tied": ours.get_tied_names(),
            }
    return outcome


def faults(_: Any) -> list[str]:
    """What every rank hears when rank 0's call fails, when tied tensors differ, and of old versions."""
    heard = []

    class Refusing:
        def set_model_state_dict(self, *_: Any) -> None:
            raise OSError("actor died")

    def attempt(engine: Any, synchronizer: Any, step: int) -> None:
        try:
            fsdp_upload_state_dict(engine, synchronizer, step, LOGGER)
            heard.append("sent")
        except (RuntimeError, ValueError) as error:
            heard.append(f"{type(error).__name__}: {error}")

    engine = make_engine(wrap(make_model(False), "fsdp2"), "fsdp2")
    attempt(engine, Refusing(), 3)
    attempt(engine, PlainSynchronizer(), 3)
    attempt(engine, PlainSynchronizer(), 3)
    apart = make_engine(wrap(make_model(True, apart=True), "fsdp1"), "fsdp1")
    plain = PlainSynchronizer()
    attempt(apart, plain, 1)
    heard.append(f"{len(plain.calls)} calls")
    dist.barrier()
    return heard
