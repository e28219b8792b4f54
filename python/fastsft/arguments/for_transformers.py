"""Values that transformers' own Trainer reads from its arguments, for a script that hands it fastsft's."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from fastsft.arguments.distributed_state import TheirArguments
from fastsft.arguments.user_values import Record

if TYPE_CHECKING:
    import torch
    import transformers


class ForTransformers:
    """Names that only transformers' Trainer asks for; a part of TrainingArguments."""

    framework = "pt"
    default_optim = "adamw_torch"
    _VALID_DICT_FIELDS = (
        "accelerator_config", "fsdp_config", "deepspeed", "gradient_checkpointing_kwargs",
        "lr_scheduler_kwargs",
    )  # fmt: skip
    fsdp: list[str] | str | None  # as declared: parsers read these annotations
    deepspeed: dict[str, Any] | str | None
    _record: Record | None
    _theirs: TheirArguments | None = None

    @property
    def deepspeed_plugin(self) -> None:
        """None. transformers' Trainer asks for it before it makes its Accelerator, so it is prepared here.

        Making transformers' own arguments of the same values sets number format, device and ranks of the
        process. ValueError with --fsdp or --deepspeed, which only fastsft's Trainer reads from this class.
        """
        for name in ("fsdp", "deepspeed"):
            if getattr(self, name):
                raise ValueError(
                    f"transformers' Trainer with args of fastsft.TrainingArguments: --{name} is read by "
                    "fastsft's Trainer alone; give it transformers.TrainingArguments, or use fastsft.Trainer"
                )
        self._theirs = self._theirs or _of_transformers(self._record or {})

    @property
    def _setup_devices(self) -> torch.device:
        """The device, as transformers has it."""
        device: torch.device = self.device  # type: ignore[attr-defined]
        return device

    @property
    def _no_sync_in_gradient_accumulation(self) -> bool:
        return True

    def _dict_dtype_to_str(self, values: dict[str, Any]) -> None:
        """Types of torch in `values` and in dictionaries inside become their names, in place."""
        for name, value in values.items():
            if isinstance(value, dict):
                self._dict_dtype_to_str(value)
            elif type(value).__module__ == "torch" and type(value).__name__ == "dtype":
                values[name] = str(value).removeprefix("torch.")


class AcceleratorSettings(dict[str, Any]):
    """`accelerator_config` as settled: a dictionary whose keys are attributes, too."""

    def __getattr__(self, name: str) -> bool | dict[str, Any] | None:
        try:
            value: bool | dict[str, Any] | None = self[name]
        except KeyError:
            raise AttributeError(f"accelerator_config has no key {name!r}") from None
        return value

    def to_dict(self) -> dict[str, Any]:
        """A plain copy."""
        return dict(self)


def _of_transformers(record: Record) -> transformers.TrainingArguments:
    """transformers' TrainingArguments with the values that were given, where it has their names."""
    import transformers

    known = {field.name: field for field in dataclasses.fields(transformers.TrainingArguments) if field.init}
    given: dict[str, Any] = {name: value for name, (value, _) in record.items() if name in known}
    return transformers.TrainingArguments(
        **{name: value for name, value in given.items() if value is not None or known[name].default is None}
    )
