"""Engines and memory plans from options by name, and whole steps of an engine."""

from __future__ import annotations

from typing import Any

from fastsft import _C

STATE_OPTIONS = frozenset(
    name
    for name, value in vars(_C.StateOptions).items()
    if isinstance(value, property) and not name.endswith("itemsize")
)


def of_state(options: dict[str, Any]) -> tuple[_C.StateOptions, dict[str, Any]]:
    """Split `options` into _C.StateOptions and a dictionary of the remaining options."""
    state = _C.StateOptions(**{name: options[name] for name in STATE_OPTIONS & set(options)})
    return state, {name: value for name, value in options.items() if name not in STATE_OPTIONS}


def new_engine(config_json: str, **options: Any) -> _C.Engine:
    """Make an engine; `options` may be fields of _C.StateOptions or arguments of _C.Engine."""
    state, others = of_state(options)
    return _C.Engine(config_json, state, **others)


def planned_bytes(config_json: str, **options: Any) -> _C.MemoryPlan:
    """Return the memory plan of the engine that `new_engine` would make with these options."""
    state, others = of_state(options)
    return _C.plan_memory(config_json, state, **others)


def train_step(
    engine: _C.Engine, dataset: _C.TokenDataset, micro_batches: Any, weights: Any, **options: Any
) -> _C.StepResult:
    """Compute one optimizer step, wait for its end, and return its result."""
    engine.begin_step(dataset, micro_batches, weights, **options)
    (result,) = engine.take_results(all=True)
    return result
