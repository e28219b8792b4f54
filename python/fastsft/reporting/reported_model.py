"""A model as the pages about its run see it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol


class ReportedModel(Protocol):
    """Its place, its size and what a step costs."""

    @property
    def source_directory(self) -> Path:
        """Directory of the model's files."""

    @property
    def recompute(self) -> str:
        """The parts that the backward pass computes again."""

    @property
    def attention_kernel(self) -> str | None:
        """The kernel of attention on a GPU; None on a CPU, and where transformers computes it."""

    def num_parameters(self) -> int:
        """Return the number of all parameters."""

    def conversation_cost(self) -> tuple[float, ...]:
        """Return the operations of a conversation, as _C.conversation_cost."""

    def adapter_facts(self) -> Mapping[str, object] | None:
        """Return facts about the adapters; None without adapters."""


class Ranked(Protocol):
    """An adapter of a linear."""

    @property
    def rank(self) -> int:
        """Columns of its A."""


class ReportedTargets(Protocol):
    """Linear layers that have adapters."""

    @property
    def adapters(self) -> Sequence[Ranked]:
        """Adapters, one for each adapted linear layer."""

    @property
    def modules(self) -> Sequence[str]:
        """Last parts of their names."""

    @property
    def trained(self) -> Collection[str]:
        """Tensors of the model that are trained as well."""


class ReportedSettings(Protocol):
    """Values of peft's LoraConfig."""

    @property
    def lora_alpha(self) -> float:
        """Numerator of the adapters' scale; the rank is the denominator."""

    @property
    def use_rslora(self) -> bool:
        """True if the scale is divided by the root of the rank."""

    @property
    def lora_dropout(self) -> float:
        """Share of an adapter's inputs that dropout drops."""


class ReportedAdapters(ReportedModel, Protocol):
    """A model with adapters."""

    @property
    def settings(self) -> ReportedSettings:
        """Settings that all adapters share."""

    @property
    def targets(self) -> ReportedTargets:
        """Places of the adapters."""

    @property
    def four_bits(self) -> bool:
        """True if the base model's linear layers have four bits."""

    def num_trained_parameters(self) -> int:
        """Return the number of trained parameters, in adapters and in tensors of the model."""
