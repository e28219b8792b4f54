"""Describes a trainer whose files are imported: tables of its keys, and the rules that need several keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path

from fastsft.arguments.data import DataArguments, ModelArguments
from fastsft.arguments.device_fields import STATE_FLAGS
from fastsft.arguments.fp8 import FP8_FLAGS
from fastsft.arguments.imports.draft import Draft, is_off, plain
from fastsft.arguments.lora import LoraArguments
from fastsft.arguments.parsing.hints import near_flag
from fastsft.arguments.support import Support, support_of
from fastsft.arguments.training import TrainingArguments

Names = Mapping[str, str]
# Fields of TrainingArguments that transformers does not have.
_NOT_TRANSFORMERS = {
    "no_resume", "cache_dir", "model_max_length", "loss_norm", "micro_batch_tokens", "plot_loss", "profile",
    "profile_steps", "early_stopping_patience", "early_stopping_threshold", "sample_prompts",
    "sample_max_new_tokens", "sample_temperature", "eval_loss", "save_dtype", "max_shard_size", "save_mode",
    "async_save", "on_save_error", "save_patience", "engine", "initial_loss_scale", "loss_scale_window",
    "recompute", "attention_kernel", "tune_gemm", *STATE_FLAGS, *FP8_FLAGS, "keep_fp8_weights",
    "sync_each_batch", "tile_tokens", "offload_inputs", "context_parallel_size",
    "on_nonfinite", "max_nonfinite_skips", "loss_spike_factor", "loss_spike_patience", "replay_check",
    "phase_timeouts",
}  # fmt: skip


def named(groups: Mapping[str, str]) -> dict[str, str]:
    """Return a table by key. groups: a reason's keys, separated by spaces."""
    return {name: reason for reason, names in groups.items() for name in names.split()}


@dataclasses.dataclass(frozen=True)
class Framework:
    """A trainer whose configuration files can be imported.

    renamed: keys with the same meaning, and their names in fastsft. idle, lost: reasons why a key is not
    written; a lost key changes the result unless its value is off. rules: functions that read the keys in
    `ruled`, with their values. defaults: writes the trainer's defaults that are not fastsft's, after all keys
    were read. has_transformers: True if transformers' TrainingArguments are keys, too.
    """

    title: str
    name: str
    version: str
    renamed: Names
    idle: Names
    lost: Names
    ruled: str
    rules: tuple[Callable[[Draft], None], ...]
    defaults: Callable[[Draft], None]
    has_transformers: bool = True

    @property
    def own_keys(self) -> frozenset[str]:
        """The keys of this trainer that are not transformers'."""
        return frozenset({*self.renamed, *self.idle, *self.lost, *self.ruled.split()})

    def knows(self, key: str) -> bool:
        """True if the trainer has this key."""
        return key in self.own_keys or (self.has_transformers and key in transformers_fields())

    def translate(self, given: Mapping[str, object], place: Path) -> Draft:
        """Return the new file's values and a row for each key of `given`. ValueError if there is no such run.

        place: directory of the file.
        """
        draft = Draft(given, place)
        for rule in self.rules:
            rule(draft)
        for key, value in list(draft.left.items()):
            self._read(draft, key, value)
        self.defaults(draft)
        order = {key: index for index, key in enumerate(given)}
        draft.rows.sort(key=lambda row: order.get(row.key, len(order)))
        return draft

    def _read(self, draft: Draft, key: str, value: object) -> None:
        if key in self.idle:
            draft.idle(key, self.idle[key])
        elif key in self.lost:
            if is_off(value):
                draft.idle(key, "it is off")
            else:
                draft.lose(key, self.lost[key])
        elif not self.knows(key):
            near = near_flag(key, [*self.own_keys, *(transformers_fields() if self.has_transformers else ())])
            hint = f"the nearest is {near}" if near else "none is near it"
            draft.lose(key, f"{self.title} has no such key that is known here; {hint}")
        elif value is None or value == "":
            draft.idle(key, "it has no value")
        elif key in self.renamed:
            draft.carry(key, {self.renamed[key]: value})
        elif self.has_transformers and key in transformers_fields():
            _read_as_is(draft, key, value)
        elif is_off(value):
            draft.idle(key, "it is off")
        else:
            draft.lose(key, "it has no place in this run")


def _read_as_is(draft: Draft, key: str, value: object) -> None:
    """Read a key of transformers' TrainingArguments, which fastsft has by the same name."""
    field = transformers_fields()[key]
    support = support_of(field)
    if support.treatment is Support.SUPPORTED:
        draft.carry(key, {key: value})
    elif support.treatment is Support.IGNORED or any(
        type(item) is type(value) and item == value for item in support.neutral
    ):
        draft.idle(key, support.remark or "it is off")
    else:
        draft.lose(key, support.remark)


@cache
def transformers_fields() -> dict[str, dataclasses.Field[object]]:
    """Return the fields of TrainingArguments that transformers has, too, by name."""
    fields = [field for field in dataclasses.fields(TrainingArguments) if field.init]
    return {field.name: field for field in fields if field.name not in _NOT_TRANSFORMERS}


@cache
def own_names() -> dict[str, int]:
    """Return the names of a training run's fields, with their places in a file's order."""
    kinds = (ModelArguments, DataArguments, LoraArguments, TrainingArguments)
    names = [field.name for kind in kinds for field in dataclasses.fields(kind)]
    return {name: index for index, name in enumerate(names)}


def said(values: Iterable[object]) -> str:
    """Return values as text, with commas between them."""
    return ", ".join(map(plain, values))
