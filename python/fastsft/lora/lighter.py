"""Settings of LoRA and QLoRA for a model, which the planner offers if a run does not fit into memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fastsft.arguments.device_fields import SPLIT_MASTERS
from fastsft.arguments.lora import LoraArguments
from fastsft.lora.adapted_model import AdaptedModel
from fastsft.lora.attach import adapted_kind, requested_settings
from fastsft.lora.targets import ALL_LINEAR
from fastsft.model.causal_lm import CausalLM
from fastsft.model.live_weights import LiveHooks
from fastsft.model.native_support import is_mixture
from fastsft.planning.gpus import has_bfloat16
from fastsft.planning.memory_plan import EngineSettings

_RANK = 16
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def lighter_methods(model: CausalLM, setting: EngineSettings) -> Iterator[list[tuple[str, EngineSettings]]]:
    """Yield LoRA and QLoRA, each as flags and the settings that result, without the method of `model`.

    A float32 run has a second variant with --bf16 True. Adapters of a native mixture of experts are those of
    attention: the native engine has no others. Nothing for a script's own model objects, which have no flags.
    """
    if isinstance(model, LiveHooks):
        return
    dtypes = [("", setting)]
    if setting.state.compute_dtype == "float32" and has_bfloat16(setting.gpu):
        dtypes.append(("--bf16 True ", setting.with_state(**SPLIT_MASTERS)))
    is_native = model.engine_kind == "native"
    takes_4_bits = is_native and setting.state.fp8 == "none"
    if isinstance(model, AdaptedModel):
        if takes_4_bits and not model.four_bits:
            nf4 = [(flag, changed.with_state(frozen_dtype="nf4")) for flag, changed in dtypes]
            yield [(f"{flag}--q_lora True", changed) for flag, changed in nf4]
        return
    names = _ATTENTION if is_native and is_mixture(model.config) else (ALL_LINEAR,)
    flags = f"--lora True --lora_r {_RANK} --lora_target_modules {' '.join(names)}"
    for four_bits in (False, True) if takes_4_bits else (False,):
        with contextlib.suppress(ValueError):  # without peft, or without linear layers
            yield [
                (
                    f"{flag}{flags}{' --q_lora True' if four_bits else ''}",
                    _adapted(model, changed, names, four_bits=four_bits),
                )
                for flag, changed in dtypes
            ]


def _adapted(
    model: CausalLM, setting: EngineSettings, names: Sequence[str], *, four_bits: bool
) -> EngineSettings:
    lora = LoraArguments(lora=True, lora_r=_RANK, lora_target_modules=[*names], q_lora=four_bits)
    adapted = adapted_kind(model)(model, requested_settings(lora, None), {}, four_bits=four_bits)
    changed = replace(adapted.with_adapters_of_engine(setting), generic=None)
    return changed.with_generic(adapted.activation_sizes(setting.state.compute_dtype))
