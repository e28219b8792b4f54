"""A model as the pages about its run see it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol


class ReportedModel(Protocol):
    """Its place, its size and what a step costs."""

    @property
    def source_directory(self) -> Path:
        """Of its files."""

    @property
    def recompute(self) -> str:
        """The parts that the backward pass computes again."""

    @property
    def attention_kernel(self) -> str | None:
        """The kernel of attention on a GPU; None on a CPU, and where transformers computes it."""

    def num_parameters(self) -> int:
        """All of them."""

    def conversation_cost(self) -> tuple[float, ...]:
        """As _C.conversation_cost."""

    def adapter_facts(self) -> Mapping[str, object] | None:
        """None without adapters."""


class Ranked(Protocol):
    """An adapter of a linear."""

    @property
    def rank(self) -> int:
        """Columns of its A."""


class ReportedTargets(Protocol):
    """Places of adapters."""

    @property
    def adapters(self) -> Sequence[Ranked]:
        """One a linear."""

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
        """Over the rank: the scale."""

    @property
    def use_rslora(self) -> bool:
        """Over the root of the rank."""

    @property
    def lora_dropout(self) -> float:
        """Of what adapters read."""


class ReportedAdapters(ReportedModel, Protocol):
    """A model with adapters."""

    @property
    def settings(self) -> ReportedSettings:
        """Of all adapters."""

    @property
    def targets(self) -> ReportedTargets:
        """Places of the adapters."""

    @property
    def four_bits(self) -> bool:
        """Of the base model's linears."""

    def num_trained_parameters(self) -> int:
        """Of the adapters, and of the model's tensors that are trained."""
