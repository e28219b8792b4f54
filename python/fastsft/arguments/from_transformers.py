"""Arguments of a script that changed one import line: transformers' TrainingArguments as fastsft's."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

from fastsft.arguments.choices import is_same
from fastsft.arguments.data import DataArguments
from fastsft.arguments.given import differing, given_fields, made_with
from fastsft.arguments.training import TrainingArguments
from fastsft.runtime.messages import warn_once
from fastsft.trackers.tracker import trackers

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_BASE = "transformers.training_args"
_ONLY_REPORT = ("to_", "_dict_dtype", "get_process_log_level")  # methods that change nothing of a run
_LAYER_CLASS = "transformer_layer_cls_to_wrap"
_DEFAULT_DIRECTORY = "tmp_trainer"  # of transformers' Trainer without arguments


def as_arguments(args: object) -> TrainingArguments:
    """`args` of a Trainer: fastsft's checked again, transformers' (or a subclass of them) field by field.

    None is transformers' default, a run into `tmp_trainer`. Fields that a script's own class adds are
    attributes of the result, whether fastsft knows them (model_max_length, cache_dir) or not. ValueError for
    what fastsft refuses; TypeError for another object.
    """
    if args is None:
        return TrainingArguments(_DEFAULT_DIRECTORY)
    if isinstance(args, TrainingArguments):
        args.settle()  # a script may have changed fields since
        return args
    if not _is_of_transformers(args):
        raise TypeError(
            "Trainer: expected args to be fastsft.TrainingArguments or transformers.TrainingArguments, got "
            f"{type(args).__name__}"
        )
    _refuse_overrides(type(args))
    given = {field.name: getattr(args, field.name) for field in dataclasses.fields(args) if field.init}
    known = {field.name for field in dataclasses.fields(TrainingArguments) if field.init}
    values = {name: value for name, value in given.items() if name in known}
    adopted = made_with(TrainingArguments, {**values, **_settled(values)}, differing(type(args), values))
    for name in given.keys() - known:
        setattr(adopted, name, given[name])
    adopted._source, adopted._source_values = args, copy.deepcopy(_plain(values))
    adopted._source_seen = _seen(args)
    return adopted


def take_changes_of_source(args: TrainingArguments) -> None:
    """Fields that a script has set since on the transformers' arguments that `args` was made of.

    ValueError as `as_arguments`.
    """
    source = args._source
    if source is None or _is_seen(source, args._source_seen):
        return
    args._source_seen = _seen(source)
    now = _plain({name: getattr(source, name) for name in args._source_values})
    changed = [name for name in now if not is_same(now[name], args._source_values[name])]
    for name in changed:
        setattr(args, name, now[name])
    if changed:
        args._source_values = copy.deepcopy(now)
        args.settle()


def says(args: TrainingArguments, name: str) -> bool:
    """True if whoever made `args` could give the field `name`: not by transformers' class without it."""
    return args._source is None or hasattr(args._source, name)


def way_to_set(args: TrainingArguments, name: str, value: object) -> str:
    """The way to give the field `name`, in place of what `args` have, for messages."""
    return f"--{name} {value}" if says(args, name) else f"fastsft.TrainingArguments({name}={value!r})"


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Those that a script sets as numbers, texts and lists."""
    kinds = (bool, int, float, str, list, tuple, dict, type(None))
    return {name: value for name, value in values.items() if isinstance(value, kinds)}


def _seen(source: object) -> dict[str, Any]:
    """Its attributes as they are now, also inside lists and dictionaries."""
    kinds = (list, dict)
    return {name: copy.deepcopy(value) if isinstance(value, kinds) else value
            for name, value in vars(source).items()}  # fmt: skip


def _is_seen(source: object, seen: Mapping[str, Any]) -> bool:
    """Nothing was set since `_seen`. Called after every event of a run: identity is enough, and fast."""
    return all(value is seen.get(name) or (isinstance(value, list | dict) and value == seen.get(name))
               for name, value in vars(source).items())  # fmt: skip


def data_settings(data_args: object) -> DataArguments:
    """fastsft's DataArguments with the values of `data_args`, which may be of a script's own class."""
    if isinstance(data_args, DataArguments):
        return data_args
    names = [field.name for field in dataclasses.fields(DataArguments)]
    values = {name: getattr(data_args, name) for name in names if hasattr(data_args, name)}
    return made_with(DataArguments, values, given_fields(data_args))


def _refuse_overrides(kind: type) -> None:
    """ValueError for a method or property of transformers' class that a script's own class has changed."""
    base = next(each for each in kind.__mro__ if each.__module__ == _BASE)
    for own in kind.__mro__[: kind.__mro__.index(base)]:
        for name, value in vars(own).items():
            changed = callable(value) or isinstance(value, property | staticmethod | classmethod)
            if changed and hasattr(base, name) and not name.startswith(("__", *_ONLY_REPORT)):
                raise ValueError(
                    f"{own.__qualname__}.{name} would never be called: fastsft takes over the fields of "
                    "transformers' TrainingArguments; leave it out, or derive the class from "
                    "fastsft.TrainingArguments"
                )


def _is_of_transformers(args: object) -> TypeGuard[DataclassInstance]:
    kinds: tuple[type, ...] = type(args).__mro__
    return dataclasses.is_dataclass(args) and any(kind.__module__ == _BASE for kind in kinds)


def _settled(values: dict[str, Any]) -> dict[str, Any]:
    """The value that transformers' __post_init__ gave a field that fastsft reads as it was given."""
    config = values.get("accelerator_config")
    config_as_dict = getattr(config, "to_dict", lambda: config)
    settled = {
        "accelerator_config": config_as_dict(),
        "report_to": _known_trackers(values.get("report_to")),
    }
    wrapped = values.get("fsdp_config")
    if isinstance(wrapped, dict):  # with the layer class of the flag, which says it better
        settled["fsdp_config"] = {key: wrapped[key] for key in wrapped if key != _LAYER_CLASS}
    if values.get("use_cpu") or values.get("no_cuda"):
        settled["dataloader_pin_memory"] = True  # False by itself, which is nothing to warn about
    return settled


def _known_trackers(report_to: str | Iterable[str] | None) -> list[str]:
    """transformers 4.x reports to all that is installed unless told otherwise; fastsft to those it knows."""
    asked = [report_to] if isinstance(report_to, str) else list(report_to or [])
    others = [name for name in asked if name not in trackers() and name not in ("none", "all")]
    if others:
        warn_once(f"--report_to {', '.join(others)}: fastsft reports to {', '.join(trackers())} only")
    return [name for name in asked if name not in others]
