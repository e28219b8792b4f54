"""Modules with adapters of peft: refused before anything is saved, planned or sent under peft's names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from peft import IA3Config, LoraConfig, PromptTuningConfig, get_peft_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from fastsft.weight_sync import (
    CheckpointCoordinator,
    Synchronizer,
    fsdp_save_state_dict,
    fsdp_sync_weight_nccl,
    fsdp_upload_state_dict,
    read_state_dict,
    sync_plan,
)
from ranks import run_ranks
from weight_sync_parts.modules import make_engine, wrap
from weight_sync_parts.receivers import make_groups
from weight_sync_parts.save_world import FORMATS, LOGGER

REFUSED = "engine.module: weights of a model with adapters are not sent; save the adapter, or merge it"


def make_llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=11, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    )
    return LlamaForCausalLM(config)


def lora(model: Any) -> Any:
    return get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))


def inner_of_lora(model: Any) -> Any:
    return lora(model).get_base_model()


def ia3(model: Any) -> Any:
    config = IA3Config(target_modules=["k_proj"], feedforward_modules=[], task_type="CAUSAL_LM")
    return get_peft_model(model, config)


def prompt_tuning(model: Any) -> Any:
    return get_peft_model(model, PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"))


def within(model: Any) -> Any:
    return nn.ModuleDict({"actor": nn.DataParallel(lora(model))})


ADAPTED = [lora, inner_of_lora, ia3, prompt_tuning, within]


def check_refused(engine: Any, folder: Path, *, decides: bool = False) -> None:
    """Whatever would send or save the weights. decides: what is broadcast is the engine's own choice."""
    for save_format in FORMATS:
        with pytest.raises(ValueError, match=REFUSED):
            fsdp_save_state_dict(
                engine, str(folder / "a"), 1, CheckpointCoordinator(), LOGGER, format=save_format
            )
    with pytest.raises(ValueError, match=REFUSED):
        fsdp_upload_state_dict(engine, Synchronizer(), 1, LOGGER)
    if not decides:
        with pytest.raises(ValueError, match=REFUSED):
            sync_plan(engine)
        (group,) = make_groups(1)
        with pytest.raises(ValueError, match=REFUSED):
            fsdp_sync_weight_nccl(engine, group)
    assert not [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("per_tensor", [False, True])
@pytest.mark.parametrize("adapt", ADAPTED)
def test_a_module_with_adapters_is_refused(
    tmp_path: Path, adapt: Callable[[Any], Any], per_tensor: bool
) -> None:
    engine = make_engine(adapt(make_llama()), "plain", per_tensor=per_tensor)
    check_refused(engine, tmp_path, decides=per_tensor)
    if per_tensor:  # merged tensors, or those of the adapter under names that its receivers know
        assert sync_plan(engine).names


def test_adapters_that_come_after_a_save_are_refused(tmp_path: Path) -> None:
    model, coordinator = make_llama(), CheckpointCoordinator()
    engine = make_engine(model, "plain", per_tensor=False)
    fsdp_save_state_dict(engine, str(tmp_path / "before"), 1, coordinator, LOGGER)
    coordinator.wait_all()
    sync_plan(engine)
    lora(model)  # in place
    (tmp_path / "after").mkdir()
    check_refused(engine, tmp_path / "after")


def test_merged_adapters_are_sent(tmp_path: Path) -> None:
    expected = list(make_llama().state_dict())
    merged = lora(make_llama()).merge_and_unload()
    assert sync_plan(make_engine(merged, "plain", per_tensor=False)).names == expected


def refuse_wrapped(_: Any, folder: str) -> None:
    for kind in ("ddp", "fsdp1_orig", "fsdp2"):
        engine = make_engine(wrap(lora(make_llama()), kind), kind, per_tensor=False)
        with pytest.raises(ValueError, match=REFUSED):
            fsdp_save_state_dict(engine, str(Path(folder, kind)), 1, CheckpointCoordinator(), LOGGER)
        with pytest.raises(ValueError, match=REFUSED):
            sync_plan(engine)


def test_wrapped_modules_with_adapters_are_refused_on_all_ranks(tmp_path: Path) -> None:
    run_ranks(2, refuse_wrapped, str(tmp_path))


def test_data_parallels_prefix_is_not_in_the_names(tmp_path: Path) -> None:
    model, coordinator = make_llama(), CheckpointCoordinator()
    engine = make_engine(nn.DataParallel(model), "plain", per_tensor=False)
    expected = model.state_dict()
    assert sync_plan(engine).names == list(expected)
    fsdp_save_state_dict(engine, str(tmp_path / "actor"), 1, coordinator, LOGGER)
    coordinator.wait_all()
    assert read_state_dict(tmp_path / "actor").keys() == expected.keys()
