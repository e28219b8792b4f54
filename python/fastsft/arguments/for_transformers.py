"""Attributes and methods of transformers' and accelerate's objects that scripts or transformers' Trainer use.

`ForTransformers` and `ArgumentSetters` are bases of TrainingArguments. Each `set_*` method sets all arguments
of its subject and returns the object; arguments that are left out get transformers' defaults. ValueError as
in the constructor.
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, Self

from fastsft.arguments.given import Record
from fastsft.ranks.process_group import barrier
from fastsft.runtime.launch import Launch

if TYPE_CHECKING:
    import torch
    import transformers

LogLevel = Literal["debug", "info", "warning", "error", "critical", "detail", "passive"]
# "detail" is transformers' name for debug; "passive" leaves the level as the program set it.
_LEVELS = {
    "detail": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
# method -> {parameter: field} for the parameters that are not named like their fields
_FIELDS_SET = {
    "set_training": {"batch_size": "per_device_train_batch_size", "num_epochs": "num_train_epochs"},
    "set_evaluate": {
        "strategy": "eval_strategy", "steps": "eval_steps", "batch_size": "per_device_eval_batch_size",
        "accumulation_steps": "eval_accumulation_steps", "delay": "eval_delay",
        "loss_only": "prediction_loss_only", "jit_mode": "jit_mode_eval",
    },
    "set_testing": {
        "batch_size": "per_device_eval_batch_size", "loss_only": "prediction_loss_only",
        "jit_mode": "jit_mode_eval",
    },
    "set_save": {
        "strategy": "save_strategy", "steps": "save_steps", "total_limit": "save_total_limit",
        "on_each_node": "save_on_each_node",
    },
    "set_logging": {
        "strategy": "logging_strategy", "steps": "logging_steps", "level": "log_level",
        "first_step": "logging_first_step", "nan_inf_filter": "logging_nan_inf_filter",
        "on_each_node": "log_on_each_node", "replica_level": "log_level_replica",
    },
    "set_push_to_hub": {
        name: f"hub_{name}"
        for name in ("model_id", "strategy", "token", "private_repo", "always_push", "revision")
    },
    "set_optimizer": {
        "name": "optim", "beta1": "adam_beta1", "beta2": "adam_beta2", "epsilon": "adam_epsilon",
        "args": "optim_args",
    },
    "set_lr_scheduler": {"name": "lr_scheduler_type", "num_epochs": "num_train_epochs"},
    "set_dataloader": {
        "train_batch_size": "per_device_train_batch_size", "eval_batch_size": "per_device_eval_batch_size",
        **{
            name: f"dataloader_{name}"
            for name in ("drop_last", "num_workers", "pin_memory", "persistent_workers", "prefetch_factor")
        },
        "sampler_seed": "data_seed",
    },
}  # fmt: skip


class ForTransformers:
    """Attributes that only transformers' Trainer reads."""

    framework = "pt"
    default_optim = "adamw_torch"
    _VALID_DICT_FIELDS = (
        "accelerator_config", "fsdp_config", "deepspeed", "gradient_checkpointing_kwargs",
        "lr_scheduler_kwargs",
    )  # fmt: skip
    _record: Record | None = None
    _theirs: Any = None  # a transformers.TrainingArguments with the same values

    @property
    def deepspeed_plugin(self) -> None:
        """None; reading this property prepares the process for transformers' Trainer.

        transformers' Trainer reads the property before it makes its Accelerator. Reading creates a
        transformers.TrainingArguments with the same values, and its constructor sets the process's dtype,
        device and ranks. ValueError with --fsdp or --deepspeed, which only fastsft's Trainer reads from this
        class.
        """
        for name in ("fsdp", "deepspeed"):
            if getattr(self, name):
                raise ValueError(
                    f"transformers' Trainer with args of fastsft.TrainingArguments: --{name} is read by "
                    "fastsft's Trainer alone; give it transformers.TrainingArguments, or use fastsft.Trainer"
                )
        self._theirs = self._theirs or _transformers_arguments(self._record or {})

    @property
    def _setup_devices(self) -> torch.device:
        """The device, under the name that transformers uses."""
        device: torch.device = self.device  # type: ignore[attr-defined]
        return device

    @property
    def _no_sync_in_gradient_accumulation(self) -> bool:
        return True

    def _dict_dtype_to_str(self, values: dict[str, Any]) -> None:
        """Replace torch dtypes in `values`, also in nested dictionaries, by their names."""
        for name, value in values.items():
            if isinstance(value, dict):
                self._dict_dtype_to_str(value)
            elif type(value).__module__ == "torch" and type(value).__name__ == "dtype":
                values[name] = str(value).removeprefix("torch.")


def _transformers_arguments(record: Record) -> transformers.TrainingArguments:
    """Make a transformers.TrainingArguments from the given values that the installed release knows."""
    import transformers

    fields = {field.name: field for field in dataclasses.fields(transformers.TrainingArguments) if field.init}
    given: dict[str, Any] = {name: value for name, (value, _) in record.items() if name in fields}
    return transformers.TrainingArguments(
        **{name: value for name, value in given.items() if value is not None or fields[name].default is None}
    )


class ArgumentSetters:
    """The `set_*` methods of transformers' TrainingArguments."""

    def resolve(self, set_now: frozenset[str] = frozenset()) -> None:
        """Check the fields, and derive the values that depend on other fields.

        set_now: names of fields that were just set.
        """
        raise NotImplementedError

    def _set(self, method: str, parameters: dict[str, Any], **fixed: object) -> Self:
        """Set the `fixed` fields and those named in `parameters`, the method's locals(); resolve again."""
        given = {name: value for name, value in parameters.items() if name != "self"}
        strategy, steps = given.get("strategy"), given.get("steps")
        if getattr(strategy, "value", strategy) == "steps" and steps == 0:
            raise ValueError("Setting `strategy` as 'steps' requires a positive value for `steps`.")
        fields = {_FIELDS_SET[method].get(name, name): value for name, value in given.items()}
        for name, value in {**fixed, **fields}.items():
            setattr(self, name, value)
        self.resolve(frozenset({*fixed, *fields}))
        return self

    def set_training(
        self, learning_rate: float = 5e-5, batch_size: int = 8, weight_decay: float = 0,
        num_epochs: float = 3, max_steps: int = -1, gradient_accumulation_steps: int = 1, seed: int = 42,
        gradient_checkpointing: bool = False,
    ) -> Self:  # fmt: skip
        """Set the training's duration, batch size and learning rate, and do_train."""
        return self._set("set_training", locals(), do_train=True)

    def set_evaluate(
        self, strategy: str = "no", steps: int = 500, batch_size: int = 8,
        accumulation_steps: int | None = None, delay: float | None = None, loss_only: bool = False,
        jit_mode: bool = False,
    ) -> Self:  # fmt: skip
        """Set when evaluations run, and their batch size."""
        return self._set("set_evaluate", locals(), evaluation_strategy=None, do_eval=False)

    def set_testing(self, batch_size: int = 8, loss_only: bool = False, jit_mode: bool = False) -> Self:
        """Set the batch size of predictions, and do_predict."""
        return self._set("set_testing", locals(), do_predict=True)

    def set_save(
        self, strategy: str = "steps", steps: int = 500, total_limit: int | None = None,
        on_each_node: bool = False,
    ) -> Self:  # fmt: skip
        """Set when checkpoints are saved, and how many are kept."""
        return self._set("set_save", locals())

    def set_logging(
        self, strategy: str = "steps", steps: int = 500, report_to: str | list[str] = "none",
        level: str = "passive", first_step: bool = False, nan_inf_filter: bool = False,
        on_each_node: bool = False, replica_level: str = "passive",
    ) -> Self:  # fmt: skip
        """Set when the run logs, to which trackers, and the log levels."""
        return self._set("set_logging", locals())

    def set_push_to_hub(
        self, model_id: str, strategy: str = "every_save", token: str | None = None,
        private_repo: bool | None = None, always_push: bool = False, revision: str | None = None,
    ) -> Self:  # fmt: skip
        """Set the hub repository and when uploads happen, and push_to_hub."""
        return self._set("set_push_to_hub", locals(), push_to_hub=True)

    def set_optimizer(
        self, name: str = "adamw_torch", learning_rate: float = 5e-5, weight_decay: float = 0,
        beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, args: str | None = None,
    ) -> Self:  # fmt: skip
        """Set the optimizer and its hyperparameters."""
        return self._set("set_optimizer", locals())

    def set_lr_scheduler(
        self, name: str = "linear", num_epochs: float = 3.0, max_steps: int = -1, warmup_ratio: float = 0,
        warmup_steps: float = 0,
    ) -> Self:  # fmt: skip
        """Set the learning rate schedule, its length and its warm-up."""
        return self._set("set_lr_scheduler", locals())

    def set_dataloader(
        self, train_batch_size: int = 8, eval_batch_size: int = 8, drop_last: bool = False,
        num_workers: int = 0, pin_memory: bool = True, persistent_workers: bool = False,
        prefetch_factor: int | None = None, auto_find_batch_size: bool = False,
        ignore_data_skip: bool = False, sampler_seed: int | None = None,
    ) -> Self:  # fmt: skip
        """Set batch sizes, data loading and the seed of the data order."""
        return self._set("set_dataloader", locals())


class AcceleratorSettings(dict[str, Any]):
    """The resolved `accelerator_config`: a dictionary whose keys can also be read as attributes."""

    def __getattr__(self, name: str) -> bool | dict[str, Any] | None:
        try:
            value: bool | dict[str, Any] | None = self[name]
        except KeyError:
            raise AttributeError(
                f"accelerator_config has no key {name!r}; it has {', '.join(self)}"
            ) from None
        return value

    def to_dict(self) -> dict[str, Any]:
        """Return a copy as a plain dictionary."""
        return dict(self)


class ParallelMode(Enum):
    """The members of transformers' ParallelMode that apply to fastsft: a single rank, or several ranks."""

    NOT_PARALLEL = "not_parallel"
    DISTRIBUTED = "distributed"


@dataclass(frozen=True)
class DistributedState:
    """Ranks and device, under the names of accelerate's PartialState that scripts read."""

    place: Launch
    device: torch.device

    @property
    def num_processes(self) -> int:
        """The job's rank count."""
        return self.place.world_size

    @property
    def process_index(self) -> int:
        """Global rank of this process."""
        return self.place.rank

    @property
    def local_process_index(self) -> int:
        """This process's local rank."""
        return self.place.local_rank

    @property
    def is_main_process(self) -> bool:
        """True if this is global rank 0."""
        return self.place.rank == 0

    @property
    def is_local_main_process(self) -> bool:
        """True if this is local rank 0."""
        return self.place.local_rank == 0

    def wait_for_everyone(self) -> None:
        """Wait for all ranks. Collective."""
        barrier()


def process_log_level(name: str) -> int:
    """Return Python's logging level for a name; for `passive`, the current level of fastsft's logger."""
    return _LEVELS.get(name, logging.getLogger("fastsft").getEffectiveLevel())
