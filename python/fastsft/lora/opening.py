"""The model that the flags ask for: of a directory, with adapters where LoRA is asked for."""

from __future__ import annotations

from fastsft.arguments.lora import LoraArguments
from fastsft.lora.adapted_model import AdaptedModel
from fastsft.lora.adapter_files import AdapterDirectory
from fastsft.lora.requested import check_same_settings, requested_settings
from fastsft.model import choice
from fastsft.model.causal_lm import CausalLM


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
    engine: --engine; adapters are the native one's.
    """
    if lora.lora:
        check_engine_of_adapters(engine)
        engine = "native"
    opened = choice.open_model(name, cache_dir=cache_dir, engine=engine, trust_remote_code=trust_remote_code)
    return with_adapters(opened, name, lora, seed)


def check_engine_of_adapters(engine: str) -> None:
    """ValueError for --engine generic."""
    if engine == "generic":
        raise ValueError("--engine generic: expected auto or native, which has the adapters of LoRA")


def with_adapters(model: CausalLM, name: str, lora: LoraArguments, seed: int = 42) -> CausalLM:
    """`model`, opened by `name`, with the adapters that the flags ask for. ValueError for LoRA's flags."""
    if not lora.lora:
        return model
    if lora.lora_weight_path:
        adapter = AdapterDirectory(lora.lora_weight_path)
        check_same_settings(lora, adapter.settings)
        return AdaptedModel.from_adapter(model, adapter, four_bits=lora.q_lora)
    return AdaptedModel(model, requested_settings(lora, name), seed=seed, four_bits=lora.q_lora)
