"""Evaluation loss as transformers 4.57.6 computes it (docs/spec/trainer_semantics.md, section 13)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.data.token_rows import TokenRows
from fastsft.ranks import process_group as launcher
from fastsft.runtime.messages import tell, warn_once
from fastsft.trainer.schedule import metric_key


def evaluation_loss(
    engine: _C.Engine,
    rows: TokenRows,
    args: TrainingArguments,
    batch_done: Callable[[int, int], None] = lambda done, total: None,
    *,
    find_packed: bool = False,
) -> float | None:
    """Return the evaluation loss as transformers computes it: the mean of batch losses, weighted by rows.

    Collective. Batches without a target are left out of the mean, and a warning names their rows. NaN if no
    batch has a target. None, with a warning, if --dataloader_drop_last leaves no batch.
    batch_done: called after each batch of this rank with (finished batches, all batches). find_packed: True
    if packed sequences of a row, each with restarting position_ids, must not attend to each other.
    """
    batch, world, rank = args.eval_batch_size, args.data_parallel_size, args.data_parallel_rank
    order, drop_last = np.arange(len(rows), dtype=np.int64), args.dataloader_drop_last
    ranks = [_C.rank_micro_batches(order, batch, other, world, drop_last) for other in range(world)]
    if not ranks[rank]:
        if drop_last:
            warn_once(
                f"evaluation: expected at least {batch * world} rows (--per_device_eval_batch_size on all "
                "ranks), got fewer, which --dataloader_drop_last leaves out: there is no loss"
            )
        return None
    mine = []
    for step in range(len(ranks[rank])):
        of_ranks = [batches[step] for batches in ranks]
        divisor = _divisor(rows, of_ranks, rank, args)
        total = _token_losses(engine, rows, of_ranks[rank], args, find_packed)
        mine.append(total / divisor if divisor else 0.0)
        batch_done(step + 1, len(ranks[rank]))
    losses = np.asarray(launcher.gather_objects(mine), dtype=np.float64)
    # ranks that share a context have the losses of their own tokens
    losses = losses.reshape(world, args.context_parallel_size, -1).sum(1)
    without = [[not _divisor(rows, list(of_ranks), other, args) for of_ranks in zip(*ranks, strict=True)]
               for other in range(world)]  # fmt: skip
    _name_rows(rows, ranks, without, losses)
    return _sample_mean(losses, np.asarray(without), rows.num_samples, batch)


def exact_loss(
    engine: _C.Engine,
    rows: TokenRows,
    args: TrainingArguments,
    batch_done: Callable[[int, int], None] = lambda done, total: None,
    *,
    find_packed: bool = False,
) -> float:
    """Return the mean loss over all targets. Collective.

    The result depends neither on the batch size nor on the rank count. NaN if there is no target.
    batch_done, find_packed: as in `evaluation_loss`.
    """
    batch, world = args.eval_batch_size, args.data_parallel_size
    count = rows.num_samples
    steps = _C.micro_batch_count(count, batch, world)
    total, bad = 0.0, []
    for step in range(steps):
        begin = (step * world + args.data_parallel_rank) * batch
        mine = np.arange(begin, min(begin + batch, count), dtype=np.int64)
        loss = _token_losses(engine, rows, mine, args, find_packed)
        bad += [] if math.isfinite(loss) else mine.tolist()
        total += loss
        batch_done(step + 1, steps)
    targets = int(rows.target_counts[:count].sum())
    if not targets:
        tell_no_target()
    gathered = launcher.gather_objects((total, bad))
    tell_not_finite(sorted({row for _, of_rank in gathered for row in of_rank}))
    return sum(loss for loss, _ in gathered) / targets if targets else float("nan")


def no_loss(
    engine: _C.Engine,
    rows: TokenRows,
    args: TrainingArguments,
    batch_done: Callable[[int, int], None] = lambda done, total: None,
    *,
    find_packed: bool = False,
) -> None:
    """Call `batch_done` for each batch, and compute no loss, since the rows have no labels.

    Takes the same arguments as `evaluation_loss`.
    """
    steps = _C.micro_batch_count(rows.num_samples, args.eval_batch_size, args.data_parallel_size)
    for step in range(steps):
        batch_done(step + 1, steps)


def _token_losses(
    engine: _C.Engine,
    rows: TokenRows,
    batch: npt.NDArray[np.int64],
    args: TrainingArguments,
    find_packed: bool,
) -> float:
    """Return the summed token losses of `batch`."""
    assert rows.native is not None  # rows are read before they are evaluated
    mine = batch[rows.target_counts[batch] > 0]
    loss: float = engine.loss(
        rows.native,
        mine,
        np.ones(len(mine)),
        label_smoothing=args.label_smoothing_factor,
        find_packed=find_packed,
    )
    return loss


def _divisor(
    rows: TokenRows, batches: list[npt.NDArray[np.int64]], rank: int, args: TrainingArguments
) -> float:
    """Return the number by which the summed token losses of `rank` in one step are divided.

    With --average_tokens_across_devices, this is the mean target count over the ranks. Otherwise, and always
    with label smoothing as in transformers' LabelSmoother, this is the rank's own target count. With
    --loss_norm global_labels, labels before the shift to the next token are counted instead of targets.
    """
    counts = rows.label_counts if args.loss_norm == "global_labels" else rows.target_counts
    targets = [int(counts[batch].sum()) for batch in batches]
    average = args.average_tokens_across_devices and not args.label_smoothing_factor
    return sum(targets) / len(batches) if average else targets[rank]


def _name_rows(
    rows: TokenRows,
    ranks: list[list[npt.NDArray[np.int64]]],
    without: list[list[bool]],
    losses: npt.NDArray[np.float64],
) -> None:
    """Warn about rows in batches without a target, and about rows in batches whose loss is not finite.

    ranks: row numbers of each batch, [rank][step]. without: True for a batch without a target, [rank][step].
    """
    flat = [(ranks[rank][step], losses[rank, step], is_without)
            for rank, steps in enumerate(without) for step, is_without in enumerate(steps)]  # fmt: skip
    bare = sorted({int(row) for batch, _, is_without in flat if is_without for row in batch})
    if all(is_without for _, _, is_without in flat):
        tell_no_target()
    elif bare:
        tell_without_targets(bare, len(rows))
    tell_not_finite([int(row) for batch, loss, _ in flat if not math.isfinite(loss) for row in batch])


def _sample_mean(
    losses: npt.NDArray[np.float64], without: npt.NDArray[np.bool_], num_rows: int, batch: int
) -> float:
    """Return the mean of `losses` [rank, step], weighted by each batch's rows.

    Each batch has `batch` rows; in the last step, the remaining rows belong to the lowest ranks. Batches
    `without` a target are left out. NaN if no batch has a target.
    """
    entries, bare = np.repeat(losses.T, batch, axis=1), np.repeat(without.T, batch, axis=1)
    left = num_rows % (batch * len(losses)) if num_rows < entries.size else 0
    num_entries = entries.size - entries.shape[1] + (left or entries.shape[1])
    kept = entries.reshape(-1)[:num_entries][~bare.reshape(-1)[:num_entries]]
    return float(kept.mean()) if kept.size else float("nan")


_MOST_NAMED = 10


def tell_without_targets(rows: Sequence[int], num_rows: int) -> None:
    """Warn once that the batches with these rows have no target and add nothing to the evaluation loss."""
    warn_once(
        f"evaluation: {len(rows)} of {num_rows:,} rows are in batches without a token to learn, which add "
        f"nothing to the loss: {_named(rows)}; raise --model_max_length where prompts fill it, or take the "
        "rows "
        "out"
    )


def tell_no_target() -> None:
    """Warn once that no row has a target, and that there is therefore no loss."""
    warn_once(
        "evaluation: no row has a token to learn, so that there is no loss to compare by (eval_loss is NaN): "
        "raise "
        "--model_max_length where prompts fill it, or give other data"
    )


def tell_not_finite(rows: Sequence[int]) -> None:
    """Print the numbers of the rows whose batch has a NaN or infinite loss, if there are any."""
    if rows:
        tell(
            f"evaluation: the loss is not finite in the batches of {len(rows)} rows: {_named(sorted(rows))}; "
            "lower --learning_rate when the weights have grown, else look at these rows"
        )


def decides(args: TrainingArguments, metrics: Mapping[str, Any], step: int) -> bool:
    """Return True unless metric_for_best_model is NaN or infinite; warn if it is.

    If False, the evaluation must change neither the best model nor a plateau schedule, and it does not count
    for early stopping.
    """
    name = metric_key(args.metric_for_best_model or "loss")
    value = metrics.get(name)
    if not isinstance(value, Real) or math.isfinite(value):
        return True
    warn_once(
        f"step {step}: {name} is {value}: this evaluation decides neither about the best model nor about the "
        "learning rate or an early end"
    )
    return False


def _named(rows: Sequence[int]) -> str:
    shown = ", ".join(map(str, rows[:_MOST_NAMED]))
    more = f" and {len(rows) - _MOST_NAMED} more" if len(rows) > _MOST_NAMED else ""
    return f"row{'' if len(rows) == 1 else 's'} {shown}{more} (from 0)"
