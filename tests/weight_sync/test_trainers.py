"""FastsftEngine over Trainers: of the generic engine, of given objects, and with adapters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    TrainerCallback,
)

import fastsft
from fastsft.runtime.launch import launch
from fastsft.weight_sync import (
    CheckpointCoordinator,
    FastsftEngine,
    Synchronizer,
    fsdp_save_state_dict,
    fsdp_sync_weight_nccl,
    fsdp_upload_state_dict,
    read_state_dict,
    sync_plan,
)
from ranks import run_ranks
from trainer_pairs import FLAGS, VOCABULARY, WIDTH, Plain
from trainer_pairs import model as small_llama
from weight_sync_parts.receivers import sync

REFUSED = "FastsftEngine: weights of a model with adapters are not sent"


def arguments(output: Path, **flags: Any) -> fastsft.TrainingArguments:
    return fastsft.TrainingArguments(
        str(output), **{"model_max_length": WIDTH, "plot_loss": False, **FLAGS, **flags}
    )


def generic_directory(folder: Path) -> str:
    """A tiny GPT-2, which has no native engine."""
    config = GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=1, n_head=2, n_positions=64)
    GPT2LMHeadModel(config).save_pretrained(folder)
    return str(folder)


def test_adapters_of_the_generic_engine_are_refused(tmp_path: Path) -> None:
    lora = LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM")
    args = arguments(tmp_path / "out")
    trainer = fastsft.Trainer(
        generic_directory(tmp_path / "base"), args, train_dataset=Plain(), peft_config=lora
    )
    engine = FastsftEngine(trainer)
    with pytest.raises(ValueError, match=REFUSED):
        sync_plan(engine)
    with pytest.raises(ValueError, match=REFUSED):
        fsdp_save_state_dict(engine, str(tmp_path / "save"), 1, CheckpointCoordinator(), None, format="hf")
    with pytest.raises(ValueError, match=REFUSED):
        fsdp_upload_state_dict(engine, Synchronizer(), 1, None)
    with pytest.raises(ValueError, match=REFUSED):
        engine.get_per_tensor_param()


def given(folder: Path, kind: str, *callbacks: Any) -> tuple[fastsft.Trainer, Any]:
    """A Trainer over an object of transformers, and that object."""
    config = GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=1, n_head=2, n_positions=64)
    module = small_llama() if kind == "native" else GPT2LMHeadModel(config)
    args = arguments(folder, max_steps=2)
    trainer = fastsft.Trainer(module, args, train_dataset=Plain(), callbacks=list(callbacks))
    assert trainer.model.engine_kind == kind
    return trainer, module


def change(module: Any) -> tuple[str, torch.Tensor]:
    """Adds to a parameter, which a script may do at any time: its name and its values."""
    name, parameter = next((name, each) for name, each in module.named_parameters() if each.dim() == 1)
    with torch.no_grad():
        parameter.add_(1.0)
    return name, parameter.detach().clone()


@pytest.mark.parametrize("kind", ["native", "generic"])
def test_what_a_script_changes_in_a_given_model_is_sent_and_saved(kind: str, tmp_path: Path) -> None:
    trainer, module = given(tmp_path / "out", kind)
    trainer.train()
    engine, coordinator, synchronizer = FastsftEngine(trainer), CheckpointCoordinator(), Synchronizer()
    name, value = change(module)
    fsdp_save_state_dict(engine, str(tmp_path / "save"), 1, coordinator, None, format="hf")
    coordinator.wait_all()
    assert torch.equal(read_state_dict(tmp_path / "save")[name], value)
    name, value = change(module)
    fsdp_upload_state_dict(engine, synchronizer, 1, None)
    assert torch.equal((synchronizer.get_model_state_dict()[0] or {})[name], value)
    name, value = change(module)
    assert torch.equal(dict(engine.get_per_tensor_param()[0])[name], value)
    name, value = change(module)
    plan = sync_plan(engine)
    _, ends = sync(
        lambda group: fsdp_sync_weight_nccl(engine, group, mode="native"),
        plan,
        mode="native",
        deadline_s=60.0,
    )
    assert all(torch.equal(dict(end.tensors)[name], value) for _, _, end in ends)


class Changing(TrainerCallback):
    """Changes weights after each step; `sent`: whether an upload had what was written."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.sent: list[bool] = []

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        name, value = change(model)
        named, _ = FastsftEngine(self.trainer).get_per_tensor_param()
        self.sent.append(torch.equal(dict(named)[name], value))


def test_what_a_callback_changes_is_sent(tmp_path: Path) -> None:
    callback = Changing()
    callback.trainer, _ = given(tmp_path, "native", callback)
    callback.trainer.train()
    assert callback.sent == [True, True]


def change_on_one_rank(_: Any, folder: str) -> str:
    trainer, module = given(Path(folder), "native")
    if launch().rank == 1:
        change(module)
    with pytest.raises(ValueError) as caught:
        fsdp_upload_state_dict(FastsftEngine(trainer), Synchronizer(), 1, None, deadline_s=60.0)
    return str(caught.value)


def test_a_change_on_one_rank_alone_is_refused_on_all(tmp_path: Path) -> None:
    told = run_ranks(2, change_on_one_rank, str(tmp_path), launched=True)
    assert all("norm.weight" in each for each in told), told


@pytest.mark.parametrize("save_dtype", [None, "float32"])
def test_a_save_has_the_configuration_of_save_model(save_dtype: str | None, tmp_path: Path) -> None:
    """Gemma 2: the engine computes with another configuration than the model's."""
    config = Gemma2Config(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=1, head_dim=8,
        num_attention_heads=2, num_key_value_heads=2, attn_logit_softcapping=50.0, eos_token_id=1,
    )  # fmt: skip
    made = Gemma2ForCausalLM(config)
    made.generation_config.eos_token_id = [1, 7]
    made.save_pretrained(tmp_path / "base")
    args = arguments(tmp_path / "out", bf16=True, save_dtype=save_dtype or "bfloat16")
    trainer = fastsft.Trainer(str(tmp_path / "base"), args, train_dataset=Plain())
    coordinator = CheckpointCoordinator()
    fsdp_save_state_dict(
        FastsftEngine(trainer), str(tmp_path / "save"), 1, coordinator, None, save_dtype=save_dtype
    )
    coordinator.wait_all()
    trainer.save_model(str(tmp_path / "judge"))
    for name in ("config.json", "generation_config.json"):
        found = json.loads((tmp_path / "save" / "huggingface" / name).read_text())
        assert found == json.loads((tmp_path / "judge" / name).read_text())
    assert found["eos_token_id"] == [1, 7]
    saved = json.loads((tmp_path / "save" / "huggingface" / "config.json").read_text())
    assert (saved["attn_logit_softcapping"], saved["dtype"]) == (50.0, save_dtype or "bfloat16")


def directory_with_buffers(folder: Path) -> tuple[str, str, torch.Tensor]:
    """A tiny GLM 4 with experts, and its buffer in float32, which bfloat16 cannot say."""
    config = AutoConfig.for_model(
        "glm4_moe", vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        head_dim=8, num_attention_heads=2, num_key_value_heads=2, moe_intermediate_size=8, n_routed_experts=4,
        num_experts_per_tok=2, n_group=1, topk_group=1, n_shared_experts=1, first_k_dense_replace=0,
    )  # fmt: skip
    made = AutoModelForCausalLM.from_config(config)
    ((name, buffer),) = [each for each in made.named_buffers() if "correction" in each[0]]
    buffer.copy_(torch.tensor([1.0031, 1.0047, -0.50123, 0.30003]))
    made.save_pretrained(folder)
    return str(folder), name, buffer


def test_buffers_keep_their_values(tmp_path: Path) -> None:
    model, name, value = directory_with_buffers(tmp_path / "base")
    trainer = fastsft.Trainer(
        model, arguments(tmp_path / "out", bf16=True, max_steps=2), train_dataset=Plain()
    )
    engine, coordinator, synchronizer = FastsftEngine(trainer), CheckpointCoordinator(), Synchronizer()
    for step in (1, 2):  # the second time without looking
        fsdp_save_state_dict(
            engine, str(tmp_path / "save"), step, coordinator, None, format="hf", save_dtype="bfloat16"
        )
        coordinator.wait_all()
        fsdp_upload_state_dict(engine, synchronizer, step, None)
        for found in (read_state_dict(tmp_path / "save"), synchronizer.get_model_state_dict()[0] or {}):
            assert found[name].dtype == torch.float32 and torch.equal(found[name], value)
            assert {each.dtype for other, each in found.items() if other != name} == {torch.bfloat16}
        trainer.train()
    assert name not in sync_plan(engine).names
    plan = sync_plan(engine, send_buffers=True)
    assert dict(zip(plan.names, plan.dtype_names, strict=True))[name] == "float32"


def test_buffers_of_a_given_model_that_a_script_changes_are_sent(tmp_path: Path) -> None:
    model, name, value = directory_with_buffers(tmp_path / "base")
    module = AutoModelForCausalLM.from_pretrained(model)
    trainer = fastsft.Trainer(module, arguments(tmp_path / "out", bf16=True), train_dataset=Plain())
    engine, synchronizer = FastsftEngine(trainer), Synchronizer()
    fsdp_upload_state_dict(engine, synchronizer, 1, None)
    assert torch.equal((synchronizer.get_model_state_dict()[0] or {})[name], value)
    module.get_buffer(name).add_(1e-5)  # less than bfloat16 can tell
    change(module)
    fsdp_upload_state_dict(engine, synchronizer, 2, None)
    assert torch.equal((synchronizer.get_model_state_dict()[0] or {})[name], value + 1e-5)
