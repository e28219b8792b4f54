"""The rows of one evaluation, read when it begins."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fastsft.arguments import TrainingArguments
from fastsft.data.batch_reads import BatchReader, ReadBatch, check_ids, join_batches
from fastsft.data.collators import Collation
from fastsft.data.item_rows import PaddedBatch
from fastsft.data.token_rows import TokenRows
from fastsft.ranks.agreement import Agreement
from fastsft.trainer.step_rows import gather_batches

if TYPE_CHECKING:
    from fastsft import _C
    from fastsft.model.causal_lm import CausalLM


class EvaluationRows(TokenRows):
    """Rows in the order of batches, micro-batch by micro-batch, rank by rank; the last ones are filled up."""

    def __init__(
        self, native: _C.TokenDataset, rows: TokenRows, num_samples: int, own: list[ReadBatch]
    ) -> None:
        super().__init__(native, rows.padded_length, rules=rows.rules)
        self._num_samples, self._own = num_samples, own

    @property
    def num_samples(self) -> int:
        """Rows of the data set: the first ones here; what follows was read to fill batches up."""
        return self._num_samples

    def padded_batch(self, step: int) -> PaddedBatch:
        """This rank's batch `step`, whose rows were read with their padding."""
        batch = self._own[step]
        numbers = [batch.number_of(place) for place in range(len(batch.items))]
        return PaddedBatch.of([item.item for item in batch.items], numbers, self.rules)


class StoredRows:
    """Batches of rows that are native: read from their data set again, with their padding.

    numbers: the rows of each batch of this rank.
    """

    def __init__(self, rows: TokenRows, numbers: list[npt.NDArray[np.int64]], collation: Collation) -> None:
        self._rows, self._numbers, self._collation = rows, numbers, collation

    def padded_batch(self, step: int) -> PaddedBatch:
        """This rank's batch `step`. ValueError as of a Collation."""
        numbers = self._numbers[step].tolist()
        items = self._collation([self._rows.source[number] for number in numbers])
        if isinstance(items, ValueError):
            raise items
        return PaddedBatch.of([item.item for item in items], numbers, self._rows.rules)


def read_evaluation(
    args: TrainingArguments, reader: BatchReader, rows: TokenRows, model: CausalLM
) -> EvaluationRows:
    """All rows as they are read now, on every rank; collective. ValueError names a row that is faulty."""
    agreement = Agreement("reading the data")  # the first batch is read here
    reads = agreement.attempt(reader.read)
    agreement.settle(None)
    assert reads is not None
    rows.rules = rules = rows.rules and dataclasses.replace(rows.rules, _columns=None)
    batches = gather_batches(reads.rest)
    if not args.dataloader_persistent_workers:
        reads.close()
    native, numbers = join_batches(batches, rules, args.eval_batch_size)
    assert model.engine is not None  # which computes the rows
    check_ids(native, numbers, model.engine.vocab_size)
    model.check_rows(native, numbers, training=False)
    own = [ranks[args.process_index] for ranks in batches]
    return EvaluationRows(native, rows, min(len(reader.dataset), len(native)), own)
