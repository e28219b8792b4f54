"""Outputs of a model for every row of a data set: logits, or what a hook makes of them, gathered over ranks.

Batches are as wide as transformers' Trainer makes them, and outputs at padding are the model's too. Batches,
and a batch of several ranks, are filled up to the widest with -100: `predictions` [rows, tokens, vocabulary]
and `label_ids` [rows, tokens].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fastsft.arguments import TrainingArguments
from fastsft.data.item_rows import PaddedBatch
from fastsft.data.token_rows import TokenRows
from fastsft.model.config import json_text
from fastsft.planning.device_memory import rank_memory, size_text
from fastsft.ranks import process_group as launcher
from fastsft.ranks.agreement import Agreement
from fastsft.runtime.messages import warn_once
from fastsft.trainer.nested_outputs import (
    Kept,
    Nested,
    head_of,
    joined,
    joined_arrays,
    row_bytes,
    to_host,
    widened,
)

if TYPE_CHECKING:
    from fastsft import _C

# The hook of `preprocess_logits_for_metrics`: (logits, labels) of a batch to what is kept of it.
Preprocess = Callable[[torch.Tensor, torch.Tensor | None], Kept]


class EvalPrediction:
    """The input of `compute_metrics`, under transformers' names: arrays, or tuples of them, and labels.

    Rows without labels have none, and compute_metrics is not called. `inputs` and `losses` are None: they are
    with --include_for_metrics alone, which is refused.
    """

    def __init__(self, predictions: Nested | None, label_ids: npt.NDArray[np.int64] | None) -> None:
        self.predictions, self.label_ids = predictions, label_ids
        self.inputs = self.losses = None
        self.elements = (predictions, label_ids)

    def __iter__(self) -> Iterator[Nested | None]:
        return iter(self.elements)

    def __getitem__(self, place: int) -> Nested | None:
        if not 0 <= place < len(self.elements):
            raise IndexError(f"expected 0 or 1, got {place}")
        return self.elements[place]


# The function of compute_metrics: numbers by name.
ComputeMetrics = Callable[[EvalPrediction], Mapping[str, float]]


class PaddedRows(Protocol):
    """The source of batches."""

    def padded_batch(self, step: int) -> PaddedBatch:
        """This rank's batch `step`."""


class Predictor:
    """Predicts the batches of an evaluation, each when `step` is called; collective.

    rows: its data. hook: called on each batch of this rank, or None. dtype: of the logits that it gets.
    find_packed: as in `evaluation_loss`.
    """

    def __init__(
        self,
        engine: _C.Engine,
        batches: PaddedRows,
        num_rows: int,
        args: TrainingArguments,
        hook: Preprocess | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        find_packed: bool = False,
    ) -> None:
        self._engine, self._batches, self._hook = engine, batches, hook
        self._args, self._num_rows, self._dtype, self._find_packed = args, num_rows, dtype, find_packed
        self._memory = rank_memory("cpu")
        self._kept: list[Nested] = []
        self._labels: list[npt.NDArray[np.int64]] = []
        self._rows_done = 0

    def step(self, step: int) -> None:
        """Batch `step` of every rank. ValueError on all when all rows do not fit into the memory of one."""
        batch = self._batches.padded_batch(step)
        width = max(launcher.gather_objects(batch.width))
        labels = None if batch.labels is None else widened(torch.from_numpy(batch.labels), width)
        kept = self._kept_of(widened(self._logits(batch), width), labels)
        mine = to_host(kept, len(batch.native)), None if labels is None else labels.numpy()
        if not self._kept:
            agreement = Agreement("predictions")
            agreement.attempt(lambda: check_size(self._num_rows, row_bytes(mine[0]), self._memory))
            agreement.settle(None)
        parts, of_labels = zip(*launcher.gather_objects(mine), strict=True)
        left = self._num_rows - self._rows_done  # what was read to fill up the last batch is cut off
        gathered = joined(list(parts))
        self._kept.append(head_of(gathered, left))
        if labels is not None:
            self._labels.append(joined_arrays(list(of_labels))[:left])
        self._rows_done += len(batch.native) * len(parts)

    def _kept_of(self, logits: torch.Tensor, labels: torch.Tensor | None) -> Kept:
        if self._hook is None:
            return logits
        return self._hook(logits, None if labels is None else labels.to(logits.device))

    def result(self) -> EvalPrediction:
        """Of all batches, on every rank."""
        labels = joined_arrays(self._labels) if self._labels else None
        return EvalPrediction(joined(self._kept) if self._kept else None, labels)

    def _logits(self, batch: PaddedBatch) -> torch.Tensor:
        """[rows, tokens, vocabulary], on the device of the run; collective."""
        rows = len(batch.native)
        flat = self._engine.row_logits(
            batch.native, np.arange(rows, dtype=np.int64), find_packed=self._find_packed
        )
        whole: torch.Tensor = flat.to(self._args.device, self._dtype)
        return whole.view(rows, batch.width, whole.shape[-1])


def check_predictions(rows: TokenRows, vocab_size: int) -> None:
    """ValueError on all ranks when the logits of all `rows` do not fit on one of them; collective.

    Rows whose lengths are not known are looked at when they have been read.
    """
    agreement = Agreement("predictions")
    memory = rank_memory("cpu")
    if rows.is_exact and len(rows):
        width = int(rows.item_lengths().max())
        agreement.attempt(lambda: check_size(rows.num_samples, width * vocab_size * 4, memory))
    agreement.settle(None)


def check_size(num_rows: int, bytes_of_row: int, memory: int) -> None:
    """ValueError when all rows do not fit into `memory` bytes."""
    needed = bytes_of_row * num_rows
    if needed > memory:
        raise ValueError(
            f"predictions of {num_rows:,} rows take {size_text(needed)} of host memory a rank, and "
            f"{size_text(memory)} is there; give Trainer(preprocess_logits_for_metrics=...) that "
            "keeps less of the logits (such as logits.argmax(-1)), predict fewer rows at a time, or ask "
            "for the loss alone with --prediction_loss_only True"
        )


def as_number(value: Any) -> Any:
    """Numbers of numpy and torch as Python's, so that they can be in a JSON file, in lists, tuples and
    dictionaries too; other values as they are."""
    if isinstance(value, Mapping):
        return {name: as_number(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        items = [as_number(item) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else value
    return value.item() if isinstance(value, np.generic | np.ndarray) and value.size == 1 else value


def check_named(metrics: object) -> None:
    """ValueError for anything else than metrics by name."""
    if not isinstance(metrics, Mapping) or not all(isinstance(name, str) for name in metrics):
        raise ValueError(
            f"compute_metrics: expected a dictionary of metrics by name, got {str(metrics)[:80]}; return one "
            'such as {"accuracy": 0.5}'
        )


def writable(metrics: Mapping[str, Any], *, must: bool) -> dict[str, Any]:
    """The metrics that trainer_state.json can hold, with lists in place of arrays and tensors.

    Others are left out with a line; must: ValueError, by its name, for such a one.
    """
    kept = {}
    for name, value in metrics.items():
        plain = _as_lists(value)
        try:
            json_text(plain)
        except (TypeError, ValueError) as error:
            wanted = f"compute_metrics: {name}: expected what JSON can hold"
            got = f"got {type(value).__name__}: {error}"
            if must:
                raise ValueError(
                    f"{wanted} (numbers, texts, arrays, lists and dictionaries of them), as checkpoints keep "
                    f"it, {got}; give one of these, such as str() of it"
                ) from error
            warn_once(f"{wanted}, {got}; it is not logged, and state.log_history does not have it")
        else:
            kept[name] = plain
    return kept


def _as_lists(value: Any) -> Any:
    """`value` with lists in place of arrays and tensors, inside of it too."""
    if isinstance(value, Mapping):
        return {name: _as_lists(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_as_lists(item) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    return value.tolist() if isinstance(value, np.ndarray | torch.Tensor) else value
