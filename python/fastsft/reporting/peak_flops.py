"""The share of a GPU's peak throughput that a run uses (MFU)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fastsft.planning.devices import gpu_of

if TYPE_CHECKING:
    from fastsft.arguments import TrainingArguments
    from fastsft.data.token_rows import TokenRows
    from fastsft.reporting.reported_model import ReportedModel


@dataclass(frozen=True)
class Work:
    """Cost of training on a token, and peak throughput of all devices together."""

    flops_per_token: float
    peak_flops: float

    def utilization(self, tokens_per_second: float) -> float:
        """MFU: the share of the peak."""
        return tokens_per_second * self.flops_per_token / self.peak_flops


def flops_per_token(cost: tuple[float, ...], num_tokens: float, num_pairs: float) -> float:
    """Mean over a data set of `num_tokens` tokens whose squared lengths sum to `num_pairs`.

    cost: _C.conversation_cost, whose quadratic part counts what attention's backward pass computes again; the
    usual counting has six sevenths of it.
    """
    linear, quadratic = cost[:2]
    return linear + 6 / 7 * quadratic * num_pairs / max(num_tokens, 1)


class HasRows(Protocol):
    """A trainer with data."""

    @property
    def args(self) -> TrainingArguments:
        """Of the run."""

    @property
    def model(self) -> ReportedModel:
        """For the cost of a token."""

    @property
    def train_rows(self) -> TokenRows:
        """The data."""


def work_of(trainer: HasRows) -> Work | None:
    """The work of a trainer with data; None on a CPU, in float32, or on a GPU whose peak is not known."""
    args, rows = trainer.args, trainer.train_rows
    if args.device.type == "cpu" or not (args.bf16 or args.fp16) or not rows.is_exact:
        return None
    gpu = gpu_of(args.device)
    if gpu is None:
        return None
    lengths = rows.lengths.astype(float)
    cost = trainer.model.conversation_cost()
    per_token = flops_per_token(cost, float(lengths.sum()), float((lengths**2).sum()))
    return Work(per_token, gpu.flops * args.world_size)
