"""The rows of one evaluation, read when it begins."""

from __future__ import annotations

from typing import Any

from fastsft.arguments import TrainingArguments
from fastsft.data.batch_reads import BatchReader
from fastsft.data.joined_batches import check_ids, join_batches
from fastsft.data.token_rows import TokenRows
from fastsft.ranks.agreement import Agreement
from fastsft.trainer.step_rows import gather_batches


class EvaluationRows(TokenRows):
    """Rows in the order of batches, micro-batch by micro-batch, rank by rank; the last ones are filled up."""

    def __init__(self, native: Any, rows: TokenRows, num_samples: int) -> None:
        super().__init__(native, rows.padded_length, rules=rows.rules)
        self._num_samples = num_samples

    @property
    def num_samples(self) -> int:
        """Rows of the data set: the first ones here; what follows was read to fill batches up."""
        return self._num_samples


def read_evaluation(
    args: TrainingArguments, reader: BatchReader, rows: TokenRows, vocab_size: int
) -> EvaluationRows:
    """All rows as they are read now, on every rank; collective. ValueError names a row that is faulty."""
    agreement = Agreement("reading the data")  # the first batch is read here
    reads = agreement.attempt(reader.read)
    agreement.settle(None)
    assert reads is not None
    batches = gather_batches(reads.rest)
    if not args.dataloader_persistent_workers:
        reads.close()
    native, numbers = join_batches(batches, rows.rules, args.eval_batch_size)
    check_ids(native, numbers, vocab_size)
    return EvaluationRows(native, rows, min(len(reader.dataset), len(native)))
