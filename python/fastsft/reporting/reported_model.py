"""The parts of a model that start and end pages read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol


class ReportedModel(Protocol):
    """A model's directory, size and compute cost."""

    @property
    def source_directory(self) -> Path:
        """Directory of the model's files."""

    @property
    def recompute(self) -> str:
        """The recompute policy: which activations the backward pass computes again."""

    @property
    def attention_kernel(self) -> str | None:
        """The attention kernel on a GPU; None on a CPU, or if transformers computes attention."""

    def num_parameters(self) -> int:
        """Return the parameter count."""

    def conversation_cost(self) -> tuple[float, ...]:
        """Return the linear and quadratic FLOPs per conversation token, as _C.conversation_cost does."""

    def adapter_facts(self) -> Mapping[str, object] | None:
        """Return facts about the adapters; None if the whole model is trained."""


class Ranked(Protocol):
    """The adapter of one linear layer."""

    @property
    def rank(self) -> int:
        """The LoRA rank r."""


class ReportedTargets(Protocol):
    """The linear layers that have adapters."""

    @property
    def adapters(self) -> Sequence[Ranked]:
        """The adapters, one for each adapted linear layer."""

    @property
    def modules(self) -> Sequence[str]:
        """The last parts of the adapted layers' names, such as q_proj."""

    @property
    def trained(self) -> Collection[str]:
        """Names of the model's own tensors that are trained as well."""


class ReportedSettings(Protocol):
    """The values of peft's LoraConfig that pages show."""

    @property
    def lora_alpha(self) -> float:
        """Numerator of the adapters' scale; the denominator is the rank, or its square root."""

    @property
    def use_rslora(self) -> bool:
        """True if the scale's denominator is the square root of the rank."""

    @property
    def lora_dropout(self) -> float:
        """Dropout probability of an adapter's inputs."""


class ReportedAdapters(ReportedModel, Protocol):
    """A model with adapters."""

    @property
    def settings(self) -> ReportedSettings:
        """The settings that all adapters share."""

    @property
    def targets(self) -> ReportedTargets:
        """The layers that have adapters."""

    @property
    def four_bits(self) -> bool:
        """True if the base model's linear layers are stored in four bits."""

    def num_trained_parameters(self) -> int:
        """Count the trained parameters, in adapters and in the model's own tensors."""
