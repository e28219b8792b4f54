"""Saves a model that another trainer trained: unit by unit, whole or not at all.

Collective. Rank 0 holds its own shard and one unit; the other ranks hold no more than they do.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.checkpoint.external.entries import Entry, NotStreamable, Unit
from fastsft.checkpoint.external.files import ModelFiles
from fastsft.checkpoint.external.names import saved_entries
from fastsft.checkpoint.external.state import state_entries, unwrapped
from fastsft.ranks.agreement import Agreement
from fastsft.runtime.launch import Launch

if TYPE_CHECKING:
    from torch import nn

    from fastsft.checkpoint.external.foreign_trainer import ForeignTrainer


def save_foreign_model(trainer: ForeignTrainer) -> None:
    """Stream `trainer.model` into `trainer.args.output_dir` with config and tokenizer; collective.

    Names, tensor types and the split into files are those of the model's `save_pretrained`. The files take
    their names when all of them are durable and read back as they were written. All ranks raise when one
    fails, and the directory keeps its old files. NotStreamable on all ranks when it cannot be streamed.
    """
    model, place = unwrapped(trainer.model), current_place()
    agreement = Agreement(f"saving the model to {trainer.args.output_dir}", place)
    entries = _agreed_entries(trainer.model, model, agreement, place)
    steps = list(_schedule(entries))
    order = [index for _, indices in steps for index in indices]
    files = ModelFiles(trainer, model, Path(trainer.args.output_dir), entries, order)
    try:
        agreement.attempt_on_first(files.open)
        for unit, indices in steps:
            _save_unit(files, unit, indices, agreement)
        agreement.settle(None)
        agreement.attempt_on_first(files.commit)
        agreement.settle(None)
    finally:
        files.discard()


def current_place() -> Launch:
    """The place of this process by torch.distributed, where it is initialised; alone otherwise."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return Launch()
    return Launch(rank=dist.get_rank(), world_size=dist.get_world_size())


def _save_unit(files: ModelFiles, unit: Unit, indices: list[int], agreement: Agreement) -> None:
    agreement.attempt(unit.prepare)
    if unit.is_sharded:
        agreement.settle(None)  # nobody waits in a gather for a rank that has failed
    tensors = unit.gather() if unit.is_sharded else agreement.attempt(unit.gather)
    agreement.attempt_on_first(lambda: files.write(indices, tensors or []))


def _agreed_entries(wrapped: nn.Module, model: nn.Module, agreement: Agreement, place: Launch) -> list[Entry]:
    """The same on every rank, or all raise: a gather that only some take part in would never end."""

    def find() -> tuple[list[Entry], str]:
        try:
            return saved_entries(model, state_entries(wrapped, place)), ""
        except NotStreamable as error:
            return [], str(error)

    entries, reason = agreement.attempt(find) or ([], "")
    listed = [(entry.name, entry.shape, str(entry.dtype), entry.unit.is_sharded) for entry in entries]
    digest = hashlib.sha256(repr(listed).encode()).hexdigest()
    for rank, (other, theirs) in enumerate(reports := agreement.settle((reason, digest))):
        if other:
            raise NotStreamable(other)
        if theirs != reports[0][1]:
            raise RuntimeError(f"{agreement.what}: rank {rank} has other weights than rank 0")
    return entries


def _schedule(entries: list[Entry]) -> Iterator[tuple[Unit, list[int]]]:
    """Units and which entries to take of them, larger elements first: so every tensor is aligned in its file.

    The element types of one unit are of one size.
    """
    steps: dict[tuple[int, int], list[int]] = {}
    numbers: dict[int, int] = {}
    for index, entry in enumerate(entries):
        number = numbers.setdefault(id(entry.unit), len(numbers))
        steps.setdefault((-entry.dtype.itemsize, number), []).append(index)
    for _, indices in sorted(steps.items()):
        yield entries[indices[0]].unit, indices
