"""The model that the flags ask for: of a directory, with adapters where LoRA is asked for."""

from __future__ import annotations

from pathlib import Path

from fastsft.arguments.lora import LoraArguments
from fastsft.lora.adapted_model import AdaptedModel
from fastsft.lora.adapter_files import AdapterDirectory
from fastsft.lora.requested import check_same_settings, requested_settings
from fastsft.lora.settings import LoraSettings
from fastsft.lora.targets import Targets, resolve
from fastsft.model import choice
from fastsft.model.causal_lm import CausalLM
from fastsft.runtime.messages import tell


def open_model(
    name: str,
    lora: LoraArguments,
    cache_dir: str | None,
    seed: int,
    engine: str = "auto",
    *,
    trust_remote_code: bool = False,
) -> CausalLM:
    """The model of a directory or hub name. ValueError as its two parts.

    seed: of the run, from which new adapters are drawn. FastChat's depend on how the script has seeded torch.
    engine: --engine.
    """
    opened = choice.open_model(name, cache_dir=cache_dir, engine=engine, trust_remote_code=trust_remote_code)
    return with_adapters(opened, name, lora, seed)


def with_adapters(model: CausalLM, name: str, lora: LoraArguments, seed: int = 42) -> CausalLM:
    """`model`, opened by `name`, with the adapters that the flags ask for. ValueError for LoRA's flags."""
    if not lora.lora:
        return model
    kind = adapted_kind(model)
    if lora.q_lora and model.engine_kind == "generic":
        raise ValueError(
            "--q_lora True: expected a model of the native engine (Llama, Mistral, Phi-3, Qwen2, Qwen3, "
            f"Gemma 2 and 3), got one of the generic engine ({getattr(model, 'engine_words', '')}); leave it "
            "out, add --bf16 True"
        )
    if lora.lora_weight_path:
        adapter = AdapterDirectory(lora.lora_weight_path)
        check_same_settings(lora, adapter.settings)
        settings = over_base(adapter.settings, name, f"the adapter {adapter.directory} was trained on")
        return kind.from_adapter(model, adapter, settings, four_bits=lora.q_lora)
    return kind(model, requested_settings(lora, name), seed=seed, four_bits=lora.q_lora)


def over_base(settings: LoraSettings, name: str, about: str) -> LoraSettings:
    """`settings` that name the base model `name`; a line where they named another one.

    about: what the line begins with, up to the name of that one.
    """
    if settings.base_model is not None and not _is_same_model(settings.base_model, name):
        tell(f"{about} {settings.base_model}, and goes on over {name}")
    return settings.of_base(name)


def _is_same_model(one: str, other: str) -> bool:
    """True for one name, and for two of the same directory."""
    first, second = Path(one).expanduser(), Path(other).expanduser()
    return one == other or (first.is_dir() and second.is_dir() and first.samefile(second))


def find_targets(model: CausalLM, adapter: AdapterDirectory) -> Targets:
    """Targets of `adapter` in the base model `model`.

    ValueError as of an AdaptedModel, and for tensors of the adapter that are not those of the targets.
    """
    targets = _targets(model, adapter)
    adapter.check(targets)
    return targets


def _targets(model: CausalLM, adapter: AdapterDirectory) -> Targets:
    if model.engine_kind == "native":
        return resolve(adapter.settings, model.engine_config())
    from fastsft.lora.generic_model import find_generic_targets
    from fastsft.model.generic.causal_lm import GenericCausalLM

    assert isinstance(model, GenericCausalLM)
    return find_generic_targets(model, adapter)


def adapted_kind(model: CausalLM) -> type[AdaptedModel]:
    """The class of `model` with adapters."""
    if model.engine_kind == "native":
        return AdaptedModel
    from fastsft.lora.generic_model import GenericAdaptedModel

    return GenericAdaptedModel
