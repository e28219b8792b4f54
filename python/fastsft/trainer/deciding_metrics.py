"""Rank 0's metrics: they decide on every rank what follows from an evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any

from fastsft.arguments import TrainingArguments
from fastsft.ranks.process_group import gather_objects
from fastsft.runtime.launch import launch
from fastsft.trainer.schedule import metric_key


def deciding_metrics(args: TrainingArguments, metrics: dict[str, Any]) -> dict[str, Any]:
    """Rank 0's numbers among `metrics`, and its metric_for_best_model whatever it is; collective.

    On one rank `metrics` themselves.
    """
    if launch().world_size == 1:
        return metrics
    name = metric_key(args.metric_for_best_model or "loss")
    numbers = {key: value for key, value in metrics.items() if isinstance(value, Real) or key == name}
    return gather_objects(numbers)[0]


@contextmanager
def of_first_rank(args: TrainingArguments, metrics: dict[str, Any]) -> Iterator[None]:
    """While callbacks hear of `metrics`, these have rank 0's numbers; collective.

    Then this rank's own again, where the callbacks have not set others.
    """
    own = dict(metrics)
    first = {
        name: value for name, value in deciding_metrics(args, metrics).items() if value is not own.get(name)
    }
    metrics.update(first)
    yield
    for name, value in first.items():
        if metrics.get(name) is not value:
            continue
        if name in own:
            metrics[name] = own[name]
        else:
            del metrics[name]
