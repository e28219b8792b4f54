"""Progress of a run, in one object, and as text of any width."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from fastsft.planning.devices import size_text
from fastsft.reporting.durations import duration_text


@dataclass(frozen=True)
class Run:
    """The part that does not change: where it writes, and the log_history that it resumes with."""

    output_dir: str
    log_history: list[dict[str, Any]]


@dataclass
class Status:
    """Numbers of the newest step. None: not known yet, or not known here (MFU on a CPU).

    tokens_per_second: of all ranks, without padding. utilization: MFU, 0 to 1. peak_memory: bytes of rank 0,
    on its GPU if it has one. phase: what goes on between steps, `evaluating 3/12`, else "".
    """

    step: int = 0
    max_steps: int = 0
    epoch: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    tokens_per_second: float = 0.0
    utilization: float | None = None
    peak_memory: int | None = None
    seconds_left: float | None = None
    phase: str = ""

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of plain values."""
        return asdict(self)


# Names in the order of reading; the number says how long a field is kept when room gets scarce.
_FIELDS = (
    ("epoch", 6), ("loss", 2), ("grad_norm", 5), ("learning_rate", 4), ("tokens_per_second", 3),
    ("utilization", 7), ("peak_memory", 8), ("seconds_left", 1),
)  # fmt: skip


def status_text(status: Status, width: int) -> str:
    """The fields that fit into `width` characters, the most important ones kept; at least one."""
    texts = {name: text for name, _ in _FIELDS if (text := _text(name, getattr(status, name)))}
    by_rank = sorted((rank, name) for name, rank in _FIELDS if name in texts)
    while len(by_rank) > 1 and sum(len(texts[name]) + 2 for _, name in by_rank) - 2 > width:
        by_rank.pop()
    kept = {name for _, name in by_rank}
    return ", ".join(text for name, text in texts.items() if name in kept)


def _text(name: str, value: float | None) -> str:
    if value is None or (name == "tokens_per_second" and not value):
        return ""
    match name:
        case "epoch":
            return f"epoch {value:.2f}"
        case "loss":
            return f"loss {value:.4g}"
        case "grad_norm":
            return f"norm {value:.3g}"
        case "learning_rate":
            return f"lr {value:.3g}"
        case "tokens_per_second":
            return f"{value:,.0f} tok/s"
        case "utilization":
            return f"MFU {value:.1%}"
        case "peak_memory":
            return size_text(int(value))
    return f"{duration_text(value)} left"
