"""Settings for torch's `FSDP.state_dict_type(trainer.model, ...)`: a model that has them, and no FSDP.

FastChat's scripts save inside of this context. Around a model without FSDP it fails on leaving
(`KeyError: None`, torch 2.11); fastsft's save needs no context, and must not fail in one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def has_settings_of_fsdp(model: nn.Module) -> None:
    """Let `model` hold the settings that the context sets and restores; they have no effect.

    RuntimeError, with the way out, where this torch keeps them otherwise.
    """
    try:
        from torch.distributed._composable_state import _insert_module_state
        from torch.distributed.fsdp._common_utils import _FSDPState, _get_module_fsdp_state

        if _get_module_fsdp_state(model) is None:
            settings = _FSDPState()
            vars(model)["fsdp_settings"] = settings  # torch refers to it weakly
            _insert_module_state(model, settings)
    except (ImportError, AttributeError, TypeError, AssertionError) as error:
        raise RuntimeError(
            "torch's FSDP.state_dict_type cannot be used around a fastsft model with this torch "
            f"({error}); save with trainer.save_model(), or fastsft.train.trainer_save_model_safe(trainer)"
        ) from error
