"""Outputs of a model for every row of a data set: logits, or what a hook makes of them, gathered over ranks.

Shapes and padding are those of transformers' Trainer: `predictions` [rows, tokens, vocabulary] and
`label_ids` [rows, tokens] with the longest row's tokens; -100 fills up what a row does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.data.token_rows import TokenRows
from fastsft.planning.device_memory import rank_memory, size_text
from fastsft.ranks import process_group as launcher
from fastsft.ranks.agreement import Agreement
from fastsft.runtime.messages import warn_once

PADDING = -100
# The hook of `preprocess_logits_for_metrics`: (logits, labels) of a batch to what is kept of it.
Preprocess = Callable[[torch.Tensor, Any], Any]


class EvalPrediction(NamedTuple):
    """The input of `compute_metrics`, under transformers' names: arrays, or tuples of them, and labels.

    Rows without labels have none, and compute_metrics is not called.
    """

    predictions: Any
    label_ids: npt.NDArray[np.int64] | None


def predict_rows(
    engine: Any,
    rows: TokenRows,
    args: TrainingArguments,
    preprocess: Preprocess | None = None,
    *,
    find_packed: bool = False,
) -> EvalPrediction:
    """Predictions for all rows, on every rank, in the order of the data set; collective.

    Rows go through the model by eval_batch_size; what is kept of a batch leaves the device at once.
    find_packed: as in `evaluation_loss`.
    ValueError when the whole set does not fit into host memory: it says how much it takes, and the ways out.
    """
    count, width = rows.num_samples, _width(rows)
    has_labels = rows.has_labels
    labels = np.full((count, width), PADDING, dtype=np.int64)
    collector = Collector(count, rank_memory("cpu"))
    if preprocess is None:
        check_predictions(rows, engine.vocab_size)
    order, world = np.arange(count, dtype=np.int64), args.world_size
    batches = [_C.rank_micro_batches(order, args.eval_batch_size, rank, world) for rank in range(world)]
    for step, mine in enumerate(batches[args.process_index]):
        batch_labels = _labels(rows, mine, width)
        kept: Any = _logits(engine, rows, mine, width, find_packed)
        if preprocess is not None:
            kept = preprocess(kept, torch.from_numpy(batch_labels).to(kept.device) if has_labels else None)
        parts = launcher.gather_objects((_to_host(kept, len(mine)), batch_labels))
        for rank, (part, their_labels) in enumerate(parts):
            collector.put(batches[rank][step], part)
            labels[batches[rank][step]] = their_labels
    return EvalPrediction(collector.whole(), labels if has_labels else None)


def tell_padding(rows: TokenRows) -> None:
    """A line where transformers has outputs at padding, which a metric may see."""
    widths = np.unique(rows.item_lengths())
    if len(rows) and (len(widths) > 1 or bool((rows.lengths != widths[0]).any())):
        warn_once(
            "predictions are as wide as the longest row without its padding, and -100 where a row has no "
            "token; transformers has the padded width, and the model's outputs at padding: look where labels "
            "are not -100"
        )


def check_predictions(rows: TokenRows, vocab_size: int) -> None:
    """ValueError on all ranks when the logits of all `rows` do not fit on one of them; collective.

    Rows whose lengths are not known are looked at when they have been read.
    """
    agreement = Agreement("predictions")
    collector = Collector(rows.num_samples, rank_memory("cpu"))
    if rows.is_exact:
        agreement.attempt(lambda: collector.check_size(_width(rows) * vocab_size * 4))
    agreement.settle(None)


class Collector:
    """Rows of arrays that arrive batch by batch. memory: bytes that this rank may take."""

    def __init__(self, num_rows: int, memory: int) -> None:
        self._num_rows, self._memory = num_rows, memory
        self._arrays: list[npt.NDArray[Any]] | None = None
        self._is_tuple = False

    def check_size(self, row_bytes: int) -> None:
        """ValueError when all rows, of `row_bytes` each, do not fit."""
        needed = row_bytes * self._num_rows
        if needed > self._memory:
            raise ValueError(
                f"predictions of {self._num_rows:,} rows take {size_text(needed)} of host memory a rank, and "
                f"{size_text(self._memory)} is there; give Trainer(preprocess_logits_for_metrics=...) that "
                "keeps less of the logits (such as logits.argmax(-1)), predict fewer rows at a time, or ask "
                "for the loss alone with --prediction_loss_only True"
            )

    def put(self, rows: npt.NDArray[np.int64], part: tuple[bool, list[npt.NDArray[Any]]]) -> None:
        """Put what was kept of the batch `rows`; ValueError when it is of other shape than before."""
        self._is_tuple, arrays = part
        if self._arrays is None:
            self.check_size(sum(array.nbytes // max(len(array), 1) for array in arrays))
            self._arrays = [np.zeros((self._num_rows, *array.shape[1:]), array.dtype) for array in arrays]
        if [array.shape[1:] for array in arrays] != [array.shape[1:] for array in self._arrays]:
            raise ValueError(
                "preprocess_logits_for_metrics: expected the same shape of every batch, "
                f"{[array.shape[1:] for array in self._arrays]} a row, got "
                f"{[array.shape[1:] for array in arrays]}"
            )
        for whole, array in zip(self._arrays, arrays, strict=True):
            whole[rows] = array

    def whole(self) -> Any:
        """All rows: an array, or a tuple where the hook gave one; None for no rows."""
        if self._arrays is None:
            return None
        return tuple(self._arrays) if self._is_tuple else self._arrays[0]


def _width(rows: TokenRows) -> int:
    """Tokens of the longest row, with what is masked in front of it."""
    if rows.native is None:
        return rows.longest
    return int(rows.native.extents().max()) if len(rows) else 0


def _labels(rows: TokenRows, batch: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.int64]:
    """Labels of `batch` [rows, width]."""
    labels = np.full((len(batch), width), PADDING, dtype=np.int64)
    for place, row in enumerate(batch):
        own, first = rows.native.labels(int(row)), rows.native.leading(int(row))
        labels[place, first : first + len(own)] = own
    return labels


def _logits(
    engine: Any, rows: TokenRows, batch: npt.NDArray[np.int64], width: int, find_packed: bool
) -> torch.Tensor:
    """Logits of `batch` [rows, width, vocabulary] in fp32, on the engine's device; collective."""
    lengths = [int(length) for length in rows.lengths[batch]]
    packed = engine.row_logits(rows.native, batch, find_packed=find_packed).float()
    padded: torch.Tensor = packed.new_full((len(batch), width, packed.shape[-1]), PADDING)
    for place, (row, logits) in enumerate(zip(batch, packed.split(lengths), strict=True)):
        first = rows.native.leading(int(row))
        padded[place, first : first + len(logits)] = logits
    return padded


def _to_host(kept: Any, batch: int) -> tuple[bool, list[npt.NDArray[Any]]]:
    """True if `kept` is a tuple, and its arrays; ValueError unless each has a row for each of the batch."""
    parts = list(kept) if isinstance(kept, tuple | list) else [kept]
    for part in parts:
        if not isinstance(part, torch.Tensor) or part.dim() == 0 or len(part) != batch:
            got = list(part.shape) if isinstance(part, torch.Tensor) else type(part).__name__
            raise ValueError(
                f"preprocess_logits_for_metrics: expected tensors with {batch} rows, one a conversation of "
                f"the batch, got {got}"
            )
    arrays = [part.detach().float() if part.dtype == torch.bfloat16 else part.detach() for part in parts]
    return isinstance(kept, tuple | list), [part.cpu().numpy() for part in arrays]


def as_number(value: Any) -> Any:
    """A number of numpy or torch as Python's, so that it can be in a JSON file; else the value."""
    is_scalar = isinstance(value, np.generic | np.ndarray | torch.Tensor) and np.size(value) == 1
    return value.item() if is_scalar else value
