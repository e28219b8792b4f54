"""Ops of bitsandbytes by their rule in Python, and a Trainer that keeps its losses, for two recorders."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

_kept: list[torch.library.Library] = []  # an override ends with its library


def use_the_python_rule(*ops: str) -> None:
    """Replace ops on a CPU by those of bitsandbytes' default backend, which its CUDA kernels follow."""
    import bitsandbytes._ops as registry

    rules: dict[str, Callable[..., Any]] = {}

    def noted(name: str, backend: str) -> Any:
        return lambda function: rules.setdefault(name.rpartition("::")[2], function)

    registered, registry.register_kernel = registry.register_kernel, noted
    sys.modules.pop("bitsandbytes.backends.default.ops", None)
    import bitsandbytes.backends.default.ops  # noqa: F401

    registry.register_kernel = registered
    library = torch.library.Library("bitsandbytes", "IMPL")
    for name in ops:
        library.impl(name, rules[name], "CPU", allow_override=True)
    _kept.append(library)


def unrounded(trainer: type) -> type:
    """Return a Trainer class that keeps its losses as they are before they are rounded."""

    class Unrounded(trainer):  # type: ignore[misc]
        def _maybe_log_save_evaluate(self, tr_loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            self.losses = {self.state.global_step: tr_loss.item(), **getattr(self, "losses", {})}
            super()._maybe_log_save_evaluate(tr_loss, *args, **kwargs)

    return Unrounded
