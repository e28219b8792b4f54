"""Tensors of model files that nothing trains: told, saved as they were, and computed with by their class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from fastsft.arguments import TrainingArguments
from fastsft.model.conversion import convert_model
from fastsft.model.stored_weights import StoredWeights
from fastsft.runtime.messages import collected
from fastsft.trainer import Trainer
from generic_engines import library_model

VOCAB = 96
GPT2 = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1,
        "eos_token_id": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # fmt: skip
SMALL = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "moe_intermediate_size": 16,
}  # fmt: skip
# Of transformers 5: tables of integers in the files, and parameters that are rows of one tensor there.
NEWEST: dict[str, dict[str, Any]] = {
    "deepseek_v4": {
        **SMALL, "num_key_value_heads": 1, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "q_lora_rank": 16, "o_groups": 2, "o_lora_rank": 8, "index_n_heads": 2, "index_head_dim": 8,
        "index_topk": 4, "sliding_window": 8, "hc_mult": 2, "num_nextn_predict_layers": 0,
        "layer_types": ["sliding_attention"] * 2, "mlp_layer_types": ["hash_moe", "moe"],
        "partial_rotary_factor": 0.5,
    },
    "hrm_text": {**SMALL, "num_hidden_layers": 1, "prefix_lm": False},
    "sarvam_moe": {**SMALL, "n_routed_experts": 4, "num_experts_per_tok": 2},
    "lara_mini": {
        **SMALL, "num_experts": 4, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 16,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
}  # fmt: skip
_IDS = torch.randint(3, VOCAB, (8, 13), generator=torch.Generator().manual_seed(2))
ROWS = [{"input_ids": ids, "labels": torch.cat([torch.full((2,), -100), ids[2:]])} for ids in _IDS]
FLAGS: dict[str, Any] = {
    "use_cpu": True, "per_device_train_batch_size": 4, "max_steps": 3, "save_strategy": "no",
    "logging_steps": 1, "learning_rate": 1e-3, "report_to": "none", "disable_tqdm": True,
}  # fmt: skip


def ours(model: Path, output: Path) -> Trainer:
    args = TrainingArguments(output_dir=str(output), plot_loss=False, **FLAGS)
    trainer = Trainer(model=str(model), args=args, train_dataset=ROWS)
    trainer.train()
    return trainer


def theirs(model: Path, output: Path) -> Any:
    args = transformers.TrainingArguments(output_dir=str(output), data_seed=42, **FLAGS)
    opened = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    trainer = transformers.Trainer(
        model=opened, args=args, train_dataset=ROWS,
        data_collator=lambda rows: {name: torch.stack([row[name] for row in rows]) for name in rows[0]},
    )  # fmt: skip
    trainer.train()
    return trainer


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {
        name: each for file in folder.glob("model*.safetensors") for name, each in load_file(file).items()
    }


@pytest.mark.parametrize("family", NEWEST)
def test_families_with_tables_and_joined_tensors(family: str, tmp_path: Path) -> None:
    if family not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        pytest.skip("of transformers 5")
    made = library_model(family, **NEWEST[family])
    for name, buffer in made.named_buffers():
        if name.endswith("tid2eid"):  # the experts of each token, in place of zeros
            buffer.copy_(torch.randint(0, 4, buffer.shape, generator=torch.Generator().manual_seed(5)))
    made.save_pretrained(tmp_path / "model")
    mine, other = ours(tmp_path / "model", tmp_path / "out"), theirs(tmp_path / "model", tmp_path / "theirs")
    assert losses(mine) == pytest.approx(losses(other), rel=2e-5)
    mine.save_model(str(tmp_path / "saved"))
    other.save_model(str(tmp_path / "other"))
    found, expected = weights(tmp_path / "saved"), weights(tmp_path / "other")
    assert {name: (each.dtype, each.shape) for name, each in found.items()} == {
        name: (each.dtype, each.shape) for name, each in expected.items()
    }
    for name, value in expected.items():
        assert (found[name] - value).float().norm() <= 1e-3 * value.float().norm() + 1e-6, name
    before = weights(tmp_path / "model")
    for name in before:
        if not before[name].is_floating_point():
            assert torch.equal(found[name], before[name])


EXTRA = {
    "extra.head.weight": torch.arange(12.0).reshape(3, 4).to(torch.float16),
    "extra.table": torch.arange(5),
    "extra.mask": torch.tensor([True, False, True]),
    "extra.scale": torch.tensor(3.0),
}


def write_with_extra(folder: Path) -> Path:
    library_model("gpt2", **GPT2).save_pretrained(folder)
    save_file({**weights(folder), **EXTRA}, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_tensors_without_a_place_are_told_and_saved_as_they_are(tmp_path: Path) -> None:
    model = write_with_extra(tmp_path / "model")
    with collected() as notices:
        trainer = ours(model, tmp_path / "out")
    (line,) = [each for each in (*notices.told, *notices.warned) if "has no place for 4 tensors" in each]
    assert "extra.head.weight" in line and "saved as in the files" in line
    for way in ("stream", "parallel"):
        for shard in ("5GB", "20KB"):
            trainer.args.save_mode, trainer.args.max_shard_size = way, shard
            trainer.save_model(str(tmp_path / f"{way}-{shard}"))
            found = weights(tmp_path / f"{way}-{shard}")
            assert found.keys() == weights(model).keys()
            assert all(torch.equal(found[name], value) for name, value in EXTRA.items())
            assert all(found[name].dtype == value.dtype for name, value in EXTRA.items())


def test_converted_files_have_them_too(tmp_path: Path) -> None:
    """Numbers get the type that is asked for; what is no number stays."""
    convert_model(write_with_extra(tmp_path / "model"), tmp_path / "half", "bfloat16", 5_000_000_000)
    found = weights(tmp_path / "half")
    assert found["extra.head.weight"].dtype == torch.bfloat16
    for name in ("extra.table", "extra.mask"):
        assert torch.equal(found[name], EXTRA[name])


def test_a_source_that_is_removed_meanwhile_is_saved_all_the_same(tmp_path: Path) -> None:
    model = write_with_extra(tmp_path / "model")
    trainer = ours(model, tmp_path / "out")
    (model / "model.safetensors").unlink()
    trainer.save_model(str(tmp_path / "saved"))
    assert all(torch.equal(weights(tmp_path / "saved")[name], value) for name, value in EXTRA.items())


def test_a_second_name_of_a_tensor_is_no_other_tensor(tmp_path: Path) -> None:
    """It would be saved as it was next to the trained one."""
    model = tmp_path / "model"
    library_model("gpt2", **GPT2).save_pretrained(model)
    tensors = weights(model)
    name = next(each for each in tensors if each.endswith("h.0.ln_1.weight"))
    twice = {**tensors, name.removeprefix("transformer."): tensors[name].clone()}
    save_file(twice, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="tensors that the model does not have: 1"):
        ours(model, tmp_path / "out")


def test_two_forms_of_the_weights_are_told_and_the_one_of_transformers_is_read(tmp_path: Path) -> None:
    model = library_model("gpt2", **GPT2)
    model.save_pretrained(tmp_path)
    single = (tmp_path / "model.safetensors").read_bytes()
    with torch.no_grad():
        model.transformer.wpe.weight.add_(1.0)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    (tmp_path / "model.safetensors").write_bytes(single)
    opened = AutoModelForCausalLM.from_pretrained(tmp_path).transformer.wpe.weight
    with collected() as notices:
        stored = StoredWeights(tmp_path)
    assert torch.equal(stored.read(next(each for each in stored.tensors if "wpe" in each)), opened)
    assert any("model.safetensors is read, as transformers does" in each for each in notices.warned)
