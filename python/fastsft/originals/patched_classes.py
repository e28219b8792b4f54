"""Classes of libraries whose methods transformers' Trainer calls, and fastsft's does not.

All methods are compared with the library's files, but those that change nothing of what is trained.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from fastsft.originals.classes import Method, foreign_methods
from fastsft.originals.no_ops import replaces_nothing

_EVENTS = "give a callback as Trainer(callbacks=[...])"
_READING = "give the rows in their order as train_dataset, with train_sampling_strategy sequential"
_COLUMNS = "give remove_unused_columns False, and leave columns out in the data set or a data_collator"
_RATES = "the rates are those of lr_scheduler_type, lr_scheduler_kwargs and warmup_steps"
_STEP = "give max_grad_norm, learning_rate, weight_decay and the adam arguments instead"


class _Class(NamedTuple):
    """`harmless`: beginnings of the names of methods that may be replaced."""

    instead: str
    place: str
    name: str
    harmless: tuple[str, ...] = ()


_REPORTS = (
    "log", "init_trackers", "get_tracker", "end_training", "trackers", "print", "profile", "save", "load",
    "register_", "unwrap_model", "free_memory", "clear", "get_state_dict", "accumulate",
    "__repr__", "__del__",
)  # fmt: skip
_OF_LOADERS = (
    _Class(_READING, "torch.utils.data", "BatchSampler"),
    _Class(_COLUMNS, "transformers.trainer", "RemoveColumnsCollator"),
)
_OF_TRAINING = (
    _Class(_READING, "accelerate.data_loader", "SeedableRandomSampler"),
    _Class(
        _RATES, "torch.optim.lr_scheduler", "LambdaLR", ("__repr__", "state_dict", "load_state", "print_")
    ),
    _Class(_READING, "torch.utils.data", "RandomSampler"),
    _Class(_EVENTS, "transformers.trainer_callback", "CallbackHandler"),
    _Class(_EVENTS, "transformers.trainer_callback", "DefaultFlowCallback"),
    _Class(_STEP, "accelerate.accelerator", "Accelerator", _REPORTS),
    _Class(_STEP, "accelerate.optimizer", "AcceleratedOptimizer", ("__repr__", "state_dict")),
    _Class(_STEP, "torch.optim", "AdamW", ("__repr__", "state_dict", "register_")),
)
_ARGUMENTS = _Class(
    "set the fields, or derive the class from fastsft.TrainingArguments", "transformers.training_args",
    "TrainingArguments", ("to_", "__str__", "__repr__", "__eq__", "get_process_log_level", "_dict_dtype"),
)  # fmt: skip
# What these do is in the fields, which are taken over from an object of the class.
_FILL_FIELDS = ("__init__", "__post_init__", "__setattr__", "set_")


class PatchedMethod(NamedTuple):
    """A method that a script replaced, or deleted (value None), and what to do instead."""

    where: str
    value: object
    instead: str


class CheckedArguments(Protocol):
    """TrainingArguments, as far as they say what of the libraries a run would go through."""

    @property
    def label_smoothing_factor(self) -> float: ...
    @property
    def lr_scheduler_type(self) -> str: ...
    @property
    def _source(self) -> object: ...


def patched_methods(args: CheckedArguments, *, training: bool) -> Iterator[PatchedMethod]:
    """Those of imported classes. args: of the Trainer; training: also what only a step goes through."""
    made_of_theirs = args._source is not None
    harmless = (*_ARGUMENTS.harmless, *(_FILL_FIELDS if made_of_theirs else ()))
    yield from _patched(_ARGUMENTS._replace(harmless=harmless))
    for each in (*_OF_LOADERS, *_OF_TRAINING) if training else _OF_LOADERS:
        yield from _patched(each)


def watched_classes() -> Iterator[type]:
    """The imported classes that a step goes through, with their bases."""
    for each in (*_OF_LOADERS, *_OF_TRAINING, _ARGUMENTS):
        kind = getattr(sys.modules.get(each.place), each.name, None)
        if isinstance(kind, type):
            yield from (owner for owner in kind.__mro__ if owner.__module__ != "builtins")


def _patched(of: _Class) -> Iterator[PatchedMethod]:
    kind = getattr(sys.modules.get(of.place), of.name, None)
    found: list[Method] = foreign_methods(kind) if isinstance(kind, type) else []
    for method in found:
        if not method.name.startswith(of.harmless) and not replaces_nothing(method):
            yield PatchedMethod(method.where, method.value, of.instead)
