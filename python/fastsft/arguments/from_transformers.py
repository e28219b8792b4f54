"""Converts transformers' TrainingArguments, for scripts that only replaced the import of the Trainer."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

from fastsft.arguments.data import DataArguments
from fastsft.arguments.given import differing, given_fields, made_with
from fastsft.arguments.training import TrainingArguments
from fastsft.arguments.values import is_same
from fastsft.runtime.messages import warn_once
from fastsft.trackers.tracker import requested_trackers, trackers

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_BASE = "transformers.training_args"
# overriding a method with such a name does not change a run
_ONLY_REPORT = ("to_", "_dict_dtype", "get_process_log_level")
_LAYER_CLASS = "transformer_layer_cls_to_wrap"
# fields of fastsft that a script may set as attributes of transformers' arguments: args.loss_norm = "..."
_OWN = ("loss_norm", "model_max_length")
_DEFAULT_DIRECTORY = "tmp_trainer"  # output_dir of transformers' Trainer without arguments


def as_arguments(args: object) -> TrainingArguments:
    """Return the `args` of a Trainer as fastsft's TrainingArguments.

    Arguments of fastsft's class are resolved again; arguments of transformers' class are converted. None
    becomes transformers' default, a run whose output_dir is `tmp_trainer`. Attributes named in _OWN count as
    fields. Fields that a script's own class adds become attributes of the result, even if fastsft has fields
    with these names (model_max_length, cache_dir). ValueError for unsupported values; TypeError for other
    objects.
    """
    if args is None:
        return TrainingArguments(_DEFAULT_DIRECTORY)
    if isinstance(args, TrainingArguments):
        args.resolve()  # a script may have changed fields after the constructor resolved them
        return args
    if not _is_transformers(args):
        raise TypeError(
            "Trainer: expected args to be fastsft.TrainingArguments or transformers.TrainingArguments, got "
            f"{type(args).__name__}"
        )
    _refuse_overrides(type(args))
    given = {field.name: getattr(args, field.name) for field in dataclasses.fields(args) if field.init}
    given |= {name: value for name, value in vars(args).items() if name in _OWN}
    fields = {field.name for field in dataclasses.fields(TrainingArguments) if field.init}
    values = {name: value for name, value in given.items() if name in fields}
    adopted = made_with(
        TrainingArguments, {**values, **_before_post_init(values)}, differing(type(args), values)
    )
    for name in given.keys() - fields:
        setattr(adopted, name, given[name])
    adopted._source, adopted._source_values = args, copy.deepcopy(_plain(values))
    adopted._source_seen = _snapshot(args)
    return adopted


def sync_from_source(args: TrainingArguments) -> None:
    """Update `args` if a script has changed the transformers.TrainingArguments that `args` was made from.

    ValueError as in `as_arguments`.
    """
    source = args._source
    if source is None or _is_unchanged(source, args._source_seen):
        return
    args._source_seen = _snapshot(source)
    now = _plain({name: getattr(source, name) for name in args._source_values})
    changed = [name for name in now if not is_same(now[name], args._source_values[name])]
    for name in changed:
        setattr(args, name, now[name])
    if changed:
        args._source_values = copy.deepcopy(now)
        args.resolve()


def says(args: TrainingArguments, name: str) -> bool:
    """True if the user's arguments have the field `name`; transformers' class lacks fastsft's own fields."""
    return args._source is None or hasattr(args._source, name)


def how_to_set(args: TrainingArguments, name: str, value: object) -> str:
    """Return text for messages that tells how to set the field `name` to `value`."""
    return f"--{name} {value}" if args._source is None else f"args.{name} = {value!r}"


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return only the values that are numbers, strings, collections or None."""
    kinds = (bool, int, float, str, list, tuple, dict, type(None))
    return {name: value for name, value in values.items() if isinstance(value, kinds)}


def _snapshot(source: object) -> dict[str, Any]:
    """Return the attributes of `source` by name, with lists and dictionaries copied."""
    kinds = (list, dict)
    return {name: copy.deepcopy(value) if isinstance(value, kinds) else value
            for name, value in vars(source).items()}  # fmt: skip


def _is_unchanged(source: object, seen: Mapping[str, Any]) -> bool:
    """True if no attribute has changed since the snapshot `seen`.

    The function runs after every event. To be fast, it compares identities if possible.
    """
    return all(value is seen.get(name) or (isinstance(value, list | dict) and value == seen.get(name))
               for name, value in vars(source).items())  # fmt: skip


def data_settings(data_args: object) -> DataArguments:
    """Return DataArguments with the values of `data_args`, whose class may be the script's own."""
    if isinstance(data_args, DataArguments):
        return data_args
    names = [field.name for field in dataclasses.fields(DataArguments)]
    values = {name: getattr(data_args, name) for name in names if hasattr(data_args, name)}
    return made_with(DataArguments, values, given_fields(data_args))


def _refuse_overrides(kind: type) -> None:
    """Raise ValueError if a script's own class overrides a method or property of transformers' class."""
    base = next(ancestor for ancestor in kind.__mro__ if ancestor.__module__ == _BASE)
    for own in kind.__mro__[: kind.__mro__.index(base)]:
        for name, value in vars(own).items():
            overrides = callable(value) or isinstance(value, property | staticmethod | classmethod)
            if overrides and hasattr(base, name) and not name.startswith(("__", *_ONLY_REPORT)):
                raise ValueError(
                    f"{own.__qualname__}.{name} would never be called: fastsft takes over the fields of "
                    "transformers' TrainingArguments; leave it out, or derive the class from "
                    "fastsft.TrainingArguments"
                )


def _is_transformers(args: object) -> TypeGuard[DataclassInstance]:
    kinds: tuple[type, ...] = type(args).__mro__
    return dataclasses.is_dataclass(args) and any(kind.__module__ == _BASE for kind in kinds)


def _before_post_init(values: dict[str, Any]) -> dict[str, Any]:
    """Return the original values of fields that transformers' __post_init__ changes."""
    config = values.get("accelerator_config")
    config_as_dict = getattr(config, "to_dict", lambda: config)
    restored = {
        "accelerator_config": config_as_dict(),
        "report_to": _known_trackers(values.get("report_to")),
    }
    wrapped = values.get("fsdp_config")
    if isinstance(wrapped, dict):  # the flag --fsdp_transformer_layer_cls_to_wrap is read instead of this key
        restored["fsdp_config"] = {key: wrapped[key] for key in wrapped if key != _LAYER_CLASS}
    if values.get("use_cpu") or values.get("no_cuda"):
        # transformers has changed this to False, and fastsft would warn of it
        restored["dataloader_pin_memory"] = True
    return restored


def _known_trackers(report_to: str | Iterable[str] | None) -> list[str]:
    """Drop trackers that fastsft lacks; transformers 4.x selects all installed trackers by default."""
    requested = requested_trackers(report_to)
    others = [name for name in requested if name not in trackers() and name not in ("none", "all")]
    if others:
        warn_once(f"--report_to {', '.join(others)}: fastsft reports to {', '.join(trackers())} only")
    return [name for name in requested if name not in others]
