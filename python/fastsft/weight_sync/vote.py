"""All trainer ranks succeed, or all raise the first failing rank's reason."""

from __future__ import annotations

from typing import Any


def settle(what: str, error: BaseException | None, rank: int, world_size: int) -> None:
    """Collective over all trainer ranks, and a barrier. The failing rank's own error stays the cause."""
    note = None if error is None else (isinstance(error, ValueError), f"{type(error).__name__}: {error}")
    notes: list[Any] = [None] * world_size
    if world_size == 1:
        notes = [note]
    else:
        import torch.distributed as dist

        dist.all_gather_object(notes, note)
    for failed, other in enumerate(notes):
        if other is not None:
            kind = ValueError if other[0] else RuntimeError
            raise kind(f"{what}: rank {failed} failed: {other[1]}") from error


def check_grows(what: str, version: int, before: int) -> None:
    """ValueError, the same on every rank, when a version does not grow."""
    if version <= before:
        raise ValueError(f"{what}: version {version} is not newer than {before}, which receivers have")
