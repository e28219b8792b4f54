"""The rows that are left of an epoch in which transformers saved its checkpoint (docs/checkpoint.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import TYPE_CHECKING

import torch

from fastsft.data.batch_reads import draw_loader_seed
from fastsft.runtime.messages import tell

if TYPE_CHECKING:
    from fastsft.runtime.random_state import RandomState
    from fastsft.trainer.running import Running

_RUNTIME = "_runtime"  # the end of a key that every evaluation logs


def draw_earlier_epochs(trainer: Running, epoch: int, saved: RandomState | None) -> None:
    """Draw from torch's global generator what transformers' run drew before the order of `epoch`.

    Only --group_by_length has an order of that generator. A line where `saved`, the states of the checkpoint,
    does not show that the run drew nothing else before, or is None: the order is not known then.
    """
    if trainer.args.train_sampling_strategy != "group_by_length":
        return
    for earlier in range(epoch):
        _draw_epoch(trainer, earlier)
    if saved is None:
        _tell_unknown(epoch, "this checkpoint has no random states for this number of ranks")
    elif epoch and not _leads_to(trainer, epoch, saved):
        _tell_unknown(epoch, "the run of this checkpoint drew other random numbers than those of the order")


def _leads_to(trainer: Running, epoch: int, saved: RandomState) -> bool:
    """True if the generator has the state `saved` after `epoch`; it stays as it is."""
    begin = torch.get_rng_state()
    _draw_epoch(trainer, epoch)
    found = torch.get_rng_state()
    torch.set_rng_state(begin)
    return torch.equal(found, saved.torch)


def _tell_unknown(epoch: int, why: str) -> None:
    tell(
        f"resuming within epoch {epoch + 1} with --group_by_length: {why}, so which rows are left is not "
        "known, and some may come twice in this epoch or not at all; a checkpoint of the end of an epoch has "
        "each row once"
    )


def _draw_epoch(trainer: Running, epoch: int) -> None:
    """The order of `epoch`, and those of the evaluations in it, up to the last one that is logged."""
    _draw_order(len(trainer.train_rows))
    for step, size in _evaluations(trainer):
        if (step - 1) // trainer.plan.steps_per_epoch == epoch:
            _draw_order(size)


def _draw_order(size: int) -> None:
    """A data loader's seed, and its sampler's permutation."""
    draw_loader_seed()
    torch.randperm(size)


def _evaluations(trainer: Running) -> Iterator[tuple[int, int]]:
    """The step of each that is logged, and the rows of its data set."""
    given = trainer.eval_dataset
    for entry in trainer.state.log_history:
        for key in entry:
            if key.startswith("eval_") and key.endswith(_RUNTIME):
                name = key.removeprefix("eval_").removesuffix(_RUNTIME)
                dataset = given.get(name) if isinstance(given, Mapping) else given
                if isinstance(dataset, Sized):
                    yield entry["step"], len(dataset)
