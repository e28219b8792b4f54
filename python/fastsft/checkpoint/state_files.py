"""Checks that trainer_state.json and fastsft_state.json have the types that a resumed run expects."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from fastsft.callbacks.state import TrainerState
from fastsft.runtime.regular_files import MOST_TOKENIZER_BYTES, read_json

_MOST = 2**53  # all JSON readers represent integers up to 2^53 exactly


@dataclass(frozen=True)
class ListOf:
    """The shape of a list whose items all have the shape `item`."""

    item: Shape


@dataclass(frozen=True)
class Optional:
    """The shape of a key that may be missing or null."""

    shape: Shape


class Count:
    """The shape of an integer from 0 to 2^53."""


class Number:
    """The shape of a finite integer or floating-point number."""


Shape: TypeAlias = "type | ListOf | Optional | Mapping[str, Shape]"


def misfit(value: object, shape: Shape, where: str) -> str | None:
    """Return a message about the first part of `value` that does not match `shape`; None if all match.

    shape: a class (`str`, `bool`, `dict`, Count, Number), a ListOf, or a mapping from keys to shapes. The
    value must have all keys that are not Optional, and may have further keys. where: first words of the
    message.
    """
    if isinstance(shape, Optional):
        return None if value is None else misfit(value, shape.shape, where)
    if isinstance(shape, Mapping):
        return _misfit_in_object(value, shape, where)
    if isinstance(shape, ListOf):
        if not isinstance(value, list):
            return _sentence(where, "a list", value)
        problems = (misfit(item, shape.item, f"{where}[{index}]") for index, item in enumerate(value))
        return next((problem for problem in problems if problem is not None), None)
    if shape is Count:
        fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST
        return None if fits else _sentence(where, "a whole number from 0 to 2^53", value)
    if shape is Number:
        fits = (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and abs(value) <= _MOST**4
            and math.isfinite(value)
        )
        return None if fits else _sentence(where, "a number", value)
    return None if isinstance(value, shape) else _sentence(where, f"a {shape.__name__}", value)


def _misfit_in_object(value: object, shape: Mapping[str, Shape], where: str) -> str | None:
    if not isinstance(value, dict):
        return _sentence(where, "an object", value)
    for key, inner in shape.items():
        if key not in value:
            if isinstance(inner, Optional):
                continue
            return f"{where}: {key} is missing"
        problem = misfit(value[key], inner, f"{where}: {key}" if ":" not in where else f"{where}.{key}")
        if problem is not None:
            return problem
    return None


def _sentence(where: str, expected: str, value: object) -> str:
    text = repr(value)
    return f"{where}: expected {expected}, got {text if len(text) <= 40 else text[:40] + '...'}"


# The limit is large, because long runs that log every step have long histories.
MOST_STATE_BYTES = 4 * MOST_TOKENIZER_BYTES
_CALLBACK: Mapping[str, Shape] = {"args": dict, "attributes": dict}
_TRAINER_STATE: Mapping[str, Shape] = {
    "epoch": Optional(Number),
    "global_step": Count,
    "max_steps": Optional(Number),
    "num_train_epochs": Optional(Number),
    "num_input_tokens_seen": Optional(Count),
    "total_flos": Optional(Number),
    "log_history": ListOf({"step": Count, "epoch": Optional(Number)}),
    "best_global_step": Optional(Count),
    "best_model_checkpoint": Optional(str),
    "stateful_callbacks": Optional(dict),
}
_OF_DUE: Mapping[str, Shape] = {
    "evaluate": Optional(bool),
    "save": Optional(bool),
    "epoch_end": Optional(bool),
    "stop": Optional(bool),
    "log_entries": Optional(Count),
}
_RUN_STATE: Mapping[str, Shape] = {
    "step": Count,
    "optimizer_step": Count,
    "position": {"epoch": Count, "conversations": Count},
    "world_size": Count,
    "batch": {"per_device": Count, "accumulation": Count, "world_size": Count, "global": Count},
    "base_weights": Optional(str),
    "micro_batch_tokens": Optional(Count),
    "launched_by": Optional(dict),
    "eval_data": Optional(dict),
    "bad_steps": Optional(
        {
            "left_out": Optional(ListOf(Count)),
            "count": Optional(Count),
            "recent_losses": Optional(ListOf(Number)),
            "spikes": Optional(ListOf(Count)),
        }
    ),
    "loss_scale": Optional(
        {
            "scale": Optional(Number),
            "good_steps": Optional(Count),
            "schedule_lag": Optional(Count),
        }
    ),
    "plateau": Optional({"taken": ListOf(float)}),
    "due": Optional(_OF_DUE),
    "losses": Optional(
        {
            "logged_step": Count,
            "last": dict,
            "sum": Number,
            "count": Count,
            "before": Number,
            "count_before": Count,
            "diluted": Optional(ListOf(Count)),
            "is_diluted": Optional(bool),
        }
    ),
}
_DUE = set(_OF_DUE)


def check_trainer_state(directory: str | Path, writer: str = "fastsft") -> None:
    """Raise ValueError unless trainer_state.json has the types that a resume needs. The error names the key.

    writer: name of the program that wrote the file, for messages.
    """
    path = Path(directory) / "trainer_state.json"
    content = read_json(path, MOST_STATE_BYTES)
    _require(misfit(content, _TRAINER_STATE, str(path)), writer)
    unknown = set(content) - {item.name for item in dataclasses.fields(TrainerState)}
    _require(f"{path}: unknown keys {sorted(unknown)}" if unknown else None, writer)
    for name, kept in (content.get("stateful_callbacks") or {}).items():
        for one in kept if isinstance(kept, list) else [kept]:
            _require(misfit(one, _CALLBACK, f"{path}: stateful_callbacks.{name}"), writer)


def check_run_state(content: dict[str, Any], path: Path) -> None:
    """Raise ValueError unless fastsft_state.json has the types that fastsft writes; name the faulty key."""
    _require(misfit(content, _RUN_STATE, str(path)))
    unknown = set(content.get("due") or {}) - _DUE
    _require(f"{path}: due: unknown keys {sorted(unknown)}" if unknown else None)


def _require(problem: str | None, writer: str = "fastsft") -> None:
    if problem is not None:
        raise ValueError(
            f"{problem}; the file is not as {writer} wrote it: copy it again, or name another checkpoint"
        )
