"""Token counts for the logs: include_num_input_tokens_seen and include_tokens_per_second.

As in transformers, padding tokens count, and the counts are sums over all ranks.
"""

from __future__ import annotations

import time
from typing import Any

from fastsft.arguments import TrainingArguments
from fastsft.callbacks.state import TrainerState
from fastsft.data.batch_reads import BatchReader
from fastsft.data.token_rows import TokenRows
from fastsft.planning.run_plan import RunPlan
from fastsft.ranks import process_group as launcher


class TokenCounter:
    """The counter that adds the tokens seen so far, and tokens per second, to log entries."""

    def __init__(self, args: TrainingArguments) -> None:
        self._is_on = args.include_num_input_tokens_seen != "no"
        self._at_start = 0

    def begin(self, state: TrainerState) -> None:
        """Start the measurement of tokens per second. A resumed run starts at the count in its `state`."""
        self._at_start = state.num_input_tokens_seen

    def add_to(self, logs: dict[str, Any], state: TrainerState, start_time: float | None) -> None:
        """Add num_input_tokens_seen to `logs` if include_num_input_tokens_seen is set.

        With `start_time`, the run's start, also add train_runtime and train_tokens_per_second.
        """
        if not self._is_on:
            return
        logs["num_input_tokens_seen"] = state.num_input_tokens_seen
        if start_time is not None:
            runtime = max(time.monotonic() - start_time, 1e-9)
            tokens = state.num_input_tokens_seen - self._at_start
            logs["train_runtime"] = round(runtime, 4)
            logs["train_tokens_per_second"] = round(tokens / runtime, 3)


def rate_of_run(
    args: TrainingArguments, plan: RunPlan, rows: TokenRows, seconds: float, tokens_read: float | None
) -> dict[str, float]:
    """Return train_tokens_per_second of a whole run; {} without include_tokens_per_second.

    Without --max_steps, the tokens of all rows count once per epoch. With --max_steps, the rows of every step
    count as if all had the mean length. tokens_read: result of `count_tokens` if the rows are not native.
    """
    if not args.include_tokens_per_second:
        return {}
    if tokens_read is not None:
        return {"train_tokens_per_second": round(tokens_read / max(seconds, 1e-9), 3)}
    lengths = rows.item_lengths()
    tokens = float(lengths.sum()) * args.num_train_epochs
    if args.max_steps > 0:
        batch = args.train_batch_size * args.gradient_accumulation_steps * args.data_parallel_size
        tokens = float(lengths.mean()) * batch * plan.max_steps
    return {"train_tokens_per_second": round(tokens / max(seconds, 1e-9), 3)}


def count_tokens(args: TrainingArguments, reader: BatchReader, max_steps: int) -> float:
    """Return how many tokens, with padding, a run will read on all ranks. Collective.

    As in transformers, the data are read for this count. One epoch is read, and its count is multiplied by
    the number of epochs. With --max_steps, only the first batch is read, and its count is multiplied by the
    number of batches.
    """
    reads = reader.read()
    batches = [reads.take()] if args.max_steps > 0 else reads.rest()
    mine = sum(len(batch.items) * batch.width for batch in batches)
    if not args.dataloader_persistent_workers:
        reads.close()
    times = max_steps * args.gradient_accumulation_steps if args.max_steps > 0 else args.num_train_epochs
    return float(sum(launcher.gather_objects(mine))) * times
