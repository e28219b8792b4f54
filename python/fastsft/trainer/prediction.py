"""A model's outputs for every row of a data set: logits, or the results of a script's hook for them.

`predictions` are [rows, tokens, vocabulary], `label_ids` are [rows, tokens], both gathered from all ranks.
Each batch is padded as in transformers' Trainer, and the model computes outputs for the padding, too. Then
all batches of the data set are filled up with -100 to the length of the longest batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fastsft.arguments import TrainingArguments
from fastsft.data.item_rows import PaddedBatch
from fastsft.data.token_rows import TokenRows
from fastsft.model.config import json_text
from fastsft.planning.devices import rank_memory, size_text
from fastsft.ranks import process_group as launcher
from fastsft.ranks.exchange import AllOrNone
from fastsft.runtime.messages import warn_once

if TYPE_CHECKING:
    from fastsft import _C

Nested: TypeAlias = "Array | tuple[Nested, ...] | list[Nested] | Mapping[str, Nested]"
# The result of a hook for one batch, before its tensors become arrays.
Kept: TypeAlias = "torch.Tensor | tuple[Kept, ...] | list[Kept] | Mapping[str, Kept]"
# The hook `preprocess_logits_for_metrics`: takes (logits, labels) of a batch, returns the outputs to keep.
Preprocess = Callable[[torch.Tensor, torch.Tensor | None], Kept]


class EvalPrediction:
    """The argument of `compute_metrics`, with transformers' attributes. Unpacks as (predictions, label_ids).

    label_ids: None if the rows have no labels; compute_metrics is not called then. `inputs` and `losses` are
    always None, since they need --include_for_metrics, which fastsft rejects.
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


# The function compute_metrics, which returns numbers by name.
ComputeMetrics = Callable[[EvalPrediction], Mapping[str, float]]


class PaddedRows(Protocol):
    """A source of padded batches."""

    def padded_batch(self, step: int) -> PaddedBatch:
        """Return batch `step` of this rank."""


class Predictor:
    """The computation of an evaluation's predictions. Each call of `step` predicts one batch.

    batches: source of this rank's batches. num_rows: the data set's row count; further rows, which only fill
    up the last batch, are cut off. hook: function for the logits of this rank's batches, or None. dtype:
    dtype of the logits. find_packed: as in `evaluation_loss`.
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
        """Predict batch `step` of every rank. Collective.

        ValueError on all ranks if the outputs of all rows would exceed the host memory of any rank.
        """
        batch = self._batches.padded_batch(step)
        width = max(launcher.gather_objects(batch.width))
        labels = None if batch.labels is None else widened(torch.from_numpy(batch.labels), width)
        kept = self._kept_of(widened(self._logits(batch), width), labels)
        mine = to_host(kept, len(batch.native)), None if labels is None else labels.numpy()
        if not self._kept:
            agreement = AllOrNone("predictions")
            agreement.attempt(lambda: check_size(self._num_rows, row_bytes(mine[0]), self._memory))
            agreement.settle(None)
        parts, of_labels = zip(*launcher.gather_objects(mine), strict=True)
        left = self._num_rows - self._rows_done  # cuts off the rows that only fill up the last batch
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
        """Return the predictions of all batches, on every rank."""
        labels = joined_arrays(self._labels) if self._labels else None
        return EvalPrediction(joined(self._kept) if self._kept else None, labels)

    def _logits(self, batch: PaddedBatch) -> torch.Tensor:
        """Return logits [rows, tokens, vocabulary] on the run's device. Collective."""
        rows = len(batch.native)
        flat = self._engine.row_logits(
            batch.native, np.arange(rows, dtype=np.int64), find_packed=self._find_packed
        )
        whole: torch.Tensor = flat.to(self._args.device, self._dtype)
        return whole.view(rows, batch.width, whole.shape[-1])


def check_predictions(rows: TokenRows, vocab_size: int) -> None:
    """Raise ValueError on all ranks if the logits of all `rows` exceed the host memory of a rank. Collective.

    If the rows' lengths are unknown, `Predictor.step` makes the check after they are read.
    """
    agreement = AllOrNone("predictions")
    memory = rank_memory("cpu")
    if rows.is_exact and len(rows):
        width = int(rows.item_lengths().max())
        agreement.attempt(lambda: check_size(rows.num_samples, width * vocab_size * 4, memory))
    agreement.settle(None)


def check_size(num_rows: int, bytes_of_row: int, memory: int) -> None:
    """Raise ValueError if `num_rows` rows of `bytes_of_row` bytes do not fit into `memory` bytes."""
    needed = bytes_of_row * num_rows
    if needed > memory:
        raise ValueError(
            f"predictions of {num_rows:,} rows take {size_text(needed)} of host memory a rank, and "
            f"{size_text(memory)} is there; give Trainer(preprocess_logits_for_metrics=...) that "
            "keeps less of the logits (such as logits.argmax(-1)), predict fewer rows at a time, or ask "
            "for the loss alone with --prediction_loss_only True"
        )


def as_number(value: Any) -> Any:
    """Return `value` with Python numbers, which JSON can hold, in place of numpy's and torch's numbers.

    Numbers in lists, tuples and dictionaries are replaced, too. Other values stay as they are.
    """
    if isinstance(value, Mapping):
        return {name: as_number(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        items = [as_number(item) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else value
    return value.item() if isinstance(value, np.generic | np.ndarray) and value.size == 1 else value


def check_named(metrics: object) -> None:
    """Raise ValueError unless `metrics` is a dictionary whose keys are text."""
    if not isinstance(metrics, Mapping) or not all(isinstance(name, str) for name in metrics):
        raise ValueError(
            f"compute_metrics: expected a dictionary of metrics by name, got {str(metrics)[:80]}; return one "
            'such as {"accuracy": 0.5}'
        )


def writable(metrics: Mapping[str, Any], *, must: bool) -> dict[str, Any]:
    """Return the metrics in a form that trainer_state.json can hold, with arrays and tensors as lists.

    Metrics that JSON cannot hold are left out with a warning, or raise ValueError if `must`.
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
    """Return `value` with lists in place of arrays and tensors, also in nested containers."""
    if isinstance(value, Mapping):
        return {name: _as_lists(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_as_lists(item) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    return value.tolist() if isinstance(value, np.ndarray | torch.Tensor) else value


_FURTHER = {"output_hidden_states": "hidden_states", "output_attentions": "attentions"}


def check_outputs(config: Mapping[str, Any], ignore_keys: Iterable[str] | None, caller: str) -> None:
    """Raise ValueError if transformers' predictions would differ from the plain logits.

    config: the model's configuration. ignore_keys: model outputs that are left out of predictions.
    caller: name of the public method, for the message.
    """
    ignored = () if ignore_keys is None else tuple(ignore_keys)
    if "logits" in ignored:
        raise ValueError(
            f"{caller}: expected ignore_keys without logits, got {list(ignored)}: predictions are the "
            "logits; for the loss alone use --prediction_loss_only True"
        )
    for name, output in _FURTHER.items():
        if config.get(name) and output not in ignored:
            raise ValueError(
                f"{caller}: model.config.{name} is True, and transformers' predictions would be a tuple of "
                f"logits and {output}; fastsft gives the logits: set it to False, or give "
                f'ignore_keys=["{output}"] (train: ignore_keys_for_eval)'
            )


PADDING = -100
Array = npt.NDArray[Any]


def to_host(kept: Kept, batch: int) -> Nested:
    """Return `kept` with numpy arrays in place of tensors; bfloat16 becomes float32.

    kept: a tensor, or a tuple, list or mapping of tensors. ValueError unless each tensor has `batch` rows.
    """
    if isinstance(kept, tuple | list):
        kind: type = type(kept)
        made: Nested = kind(to_host(part, batch) for part in kept)
        return made
    if isinstance(kept, Mapping):
        return {name: to_host(part, batch) for name, part in kept.items()}
    if not isinstance(kept, torch.Tensor) or kept.dim() == 0 or len(kept) != batch:
        got = list(kept.shape) if isinstance(kept, torch.Tensor) else type(kept).__name__
        raise ValueError(
            f"preprocess_logits_for_metrics: expected tensors with {batch} rows, one a conversation of "
            f"the batch, got {got}"
        )
    values = kept.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def row_bytes(arrays: Nested) -> int:
    """Return the size of one row [bytes], summed over all arrays in `arrays`."""
    return sum(array.nbytes // max(len(array), 1) for array in leaves(arrays))


def leaves(arrays: Nested) -> list[Array]:
    """Return the arrays within nested lists, tuples and dictionaries."""
    if isinstance(arrays, np.ndarray):
        return [arrays]
    parts = arrays.values() if isinstance(arrays, Mapping) else arrays
    return [leaf for part in parts for leaf in leaves(part)]


def head_of(arrays: Nested, rows: int) -> Nested:
    """Return the first `rows` rows of each array."""
    return _each(lambda parts: parts[0][:rows], [arrays])


def joined(batches: Sequence[Nested]) -> Nested:
    """Concatenate `batches` along the rows, after filling dimension 1 with -100 to the largest size.

    ValueError if the batches differ in structure, in dimension count, or in a size after dimension 1.
    """
    return _each(joined_arrays, batches)


def _each(merge: Callable[[Sequence[Array]], Array], batches: Sequence[Any]) -> Nested:
    first = batches[0]
    if isinstance(first, np.ndarray):
        return merge(batches)
    if any(type(batch) is not type(first) or len(batch) != len(first) for batch in batches):
        raise ValueError(
            "preprocess_logits_for_metrics: expected the same parts of every batch, got "
            f"{', '.join(sorted({f'{type(batch).__name__} of {len(batch)}' for batch in batches}))}"
        )
    if isinstance(first, Mapping):
        return {name: _each(merge, [batch[name] for batch in batches]) for name in first}
    kind: type = type(first)
    made: Nested = kind(_each(merge, list(parts)) for parts in zip(*batches, strict=True))
    return made


def joined_arrays(arrays: Sequence[Array]) -> Array:
    """Concatenate arrays along the rows, after filling dimension 1 with -100 to the largest size.

    ValueError if the arrays differ in dimension count, or in a size after dimension 1.
    """
    first = arrays[0]
    if any(array.ndim != first.ndim or array.shape[2:] != first.shape[2:] for array in arrays):
        raise ValueError(
            "preprocess_logits_for_metrics: expected the same shape of every batch but for rows and tokens, "
            f"got {sorted({array.shape[1:] for array in arrays})} a row"
        )
    if first.ndim > 1:
        width = max(array.shape[1] for array in arrays)
        arrays = [widened(torch.from_numpy(array), width).numpy() for array in arrays]
    return np.concatenate(arrays)


def widened(values: torch.Tensor, width: int) -> torch.Tensor:
    """Return `values` [rows, tokens, ...] filled up with -100 to `width` tokens."""
    if values.shape[1] == width:
        return values
    result = values.new_full((len(values), width, *values.shape[2:]), PADDING)
    result[:, : values.shape[1]] = values
    return result
