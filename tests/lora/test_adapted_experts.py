"""Adapters of experts that are one parameter of their layer (transformers 5): peft and the Trainer judge."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import fastsft
from fastsft.cli import main as cli
from fastsft.lora.adapter_files import AdapterDirectory
from fastsft.lora.generic_model import GenericAdaptedModel
from fastsft.lora.merge import MergedModel, merge_adapter
from fastsft.lora.settings import LoraSettings
from fastsft.model.engine_choice import open_model
from fastsft.train_lora import train as train_lora
from generic_engines import library_model
from inspected_models import LLAMA
from lora.test_generic_adapters import check_gradients, peft_model
from model.test_generic_architectures import ARCHITECTURES, GROUPED
from trainer_pairs import FLAGS, WIDTH, Plain, curve, theirs, unrounded

pytestmark = pytest.mark.skipif(
    int(transformers.__version__.split(".")[0]) < 5, reason="experts of transformers 4 are linear layers"
)
FAMILIES = {
    "qwen3_moe": "qwen3_moe: norms of queries, experts",
    "mixtral": "mixtral: experts",
    "qwen2_moe": "qwen2_moe: shared expert",
    "olmoe": "olmoe: experts",
}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "hunyuan_v1_moe": ("hunyuan_v1_moe", {**GROUPED, "head_dim": 8, "num_experts": 4, "moe_topk": 2}),
    "qwen3_next": ("qwen3_next", {
        **GROUPED, "head_dim": 8, "layer_types": ["linear_attention", "full_attention"], "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
        "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    }),
}  # fmt: skip
IDS = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(0))


def base_of(family: str, directory: Path) -> Any:
    """A model saved in `directory` whose router chooses differently from token to token."""
    model_type, config = ARCHITECTURES[FAMILIES[family]]
    base = library_model(model_type, **{**config, "initializer_range": 0.2})
    base.save_pretrained(directory)
    return base


def config_of(directory: Path, **fields: Any) -> LoraConfig:
    given = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", **fields}
    return LoraConfig(task_type="CAUSAL_LM", base_model_name_or_path=str(directory), **given)


def ours(base: Path, output: Path, lora: LoraConfig | None, **flags: Any) -> fastsft.Trainer:
    args = fastsft.TrainingArguments(
        str(output), **{"model_max_length": WIDTH, "plot_loss": False, **FLAGS, **flags}
    )
    return fastsft.Trainer(str(base), args, train_dataset=Plain(), peft_config=lora)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(IDS).logits


def opened(base: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)


def near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((found - expected).norm() <= 1e-4 * expected.norm())


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("qwen3_moe", {}),
        ("mixtral", {"use_rslora": True, "init_lora_weights": "gaussian"}),
        ("mixtral", {"target_modules": ["q_proj", "w2"], "alpha_pattern": {"down_proj": 3}}),
        ("olmoe", {}),
        # peft turns all-linear of this one into no parameters
        ("qwen2_moe", {"target_modules": ["q_proj"], "target_parameters": ["gate_up_proj", "down_proj"]}),
    ],
)
def test_the_curve_the_files_and_the_merged_model_are_pefts(
    family: str, fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adapters drawn from the seed; B begins as zero, so a wrong place of an expert shows from step 2 on."""
    unrounded(monkeypatch)
    base = tmp_path / "base"
    model = base_of(family, base)
    torch.manual_seed(42)
    expected = theirs(tmp_path / "theirs", Plain(), module=get_peft_model(model, config_of(base, **fields)))
    expected.train()
    trainer = ours(base, tmp_path / "ours", config_of(base, **fields))
    trainer.train()
    assert curve(trainer) == pytest.approx(curve(expected), abs=1e-5, rel=0)

    trainer.save_model(str(tmp_path / "saved"))
    expected.model.save_pretrained(tmp_path / "pefts")
    found, wanted = (load_file(tmp_path / each / "adapter_model.safetensors") for each in ("saved", "pefts"))
    assert {name: value.shape for name, value in found.items()} == {
        name: value.shape for name, value in wanted.items()
    }
    assert any("experts.lora_A" in name for name in found)
    found, wanted = (
        json.loads((tmp_path / each / "adapter_config.json").read_text()) for each in ("saved", "pefts")
    )
    for name in ("target_modules", "target_parameters"):
        assert set(found[name]) == set(wanted[name])
    for name in ("r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora"):
        assert found[name] == wanted[name]

    trained = logits(expected.model)
    assert not near(logits(opened(base)), trained)
    assert near(logits(PeftModel.from_pretrained(opened(base), tmp_path / "saved")), trained)
    merge_adapter(tmp_path / "saved", tmp_path / "merged", base)
    assert near(logits(opened(tmp_path / "merged")), trained)
    merge_adapter(tmp_path / "pefts", tmp_path / "merged of peft", base)
    whole = expected.model.merge_and_unload()
    for name, value in opened(tmp_path / "merged of peft").named_parameters():
        assert torch.allclose(value, whole.get_parameter(name), atol=1e-6), name
    change, in_memory = MergedModel.open(tmp_path / "pefts", base).merged, opened(base)
    for name, value in in_memory.named_parameters():
        assert torch.allclose(change(name, value.data), whole.get_parameter(name), atol=1e-6), name


@pytest.mark.parametrize(
    "name",
    ["deepseek_v3: a buffer that is saved", "glm4_moe: a buffer that is saved",
     "ernie4_5_moe: a frozen parameter", "hunyuan_v1_moe", "qwen3_next"],
)  # fmt: skip
def test_loss_and_gradients(name: str) -> None:
    """Next to shared experts, dense layers and buffers; routers by other names; two kinds of attention."""
    model_type, config = {**ARCHITECTURES, **OTHERS}[name]
    settings = LoraSettings(r=4, lora_alpha=6, target_modules="all-linear", use_rslora=True)
    model = peft_model(model_type, settings, **config)
    assert any("experts.base_layer.lora_A" in each for each, _ in model.named_parameters())
    check_gradients(model, settings, recompute=True)


def test_a_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base_of("qwen3_moe", base)
    flags = {"save_strategy": "steps", "save_steps": 3}
    whole = ours(base, tmp_path / "whole", config_of(base), **flags)
    whole.train()
    again = ours(base, tmp_path / "again", config_of(base), **flags)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert again.state.global_step == whole.state.global_step > 3
    expected, found = whole.model.state_dict(), again.model.state_dict()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def test_an_adapter_of_pefts_is_trained_on_and_merged_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--lora_weight_path with --save_merged; `fastsft plan` of the same flags."""
    base = tmp_path / "base"
    shutil.copytree(LLAMA, base)
    model_type, config = ARCHITECTURES[FAMILIES["qwen3_moe"]]
    model = library_model(model_type, **{**config, "vocab_size": 32000, "max_position_embeddings": 128})
    model.save_pretrained(base)
    monkeypatch.setenv("COLUMNS", "2000")
    flags = ["--model_name_or_path", str(base), "--model_max_length", "64"]
    wanted = ["--lora_r", "4", "--lora_target_modules", "all-linear", "--lora_dropout", "0"]
    assert cli.main(["plan", *flags, "--lora", *wanted]) == 0
    assert "adapters on a frozen model" in capsys.readouterr().out
    torch.manual_seed(1)
    wrapped = get_peft_model(model, config_of(base, init_lora_weights=False))
    wrapped.save_pretrained(tmp_path / "pefts")
    data = tmp_path / "data.json"
    turns = [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Good day to you."}]
    data.write_text(json.dumps([{"id": str(each), "conversations": turns} for each in range(4)]))
    output = tmp_path / "out"
    run = [*flags, "--data_path", str(data), "--output_dir", str(output), "--use_cpu", "True"]
    run += ["--max_steps", "2", "--learning_rate", "1e-2", "--save_strategy", "no", "--save_merged", "True"]
    train_lora([*run, "--lora_weight_path", str(tmp_path / "pefts")])
    expected = PeftModel.from_pretrained(opened(base), output)
    assert near(logits(opened(output / "merged")), logits(expected))
    assert not near(logits(wrapped), logits(expected))


def adapter_of_transformers_4(base: Path, directory: Path) -> dict[str, torch.Tensor]:
    """Adapters of all linear layers that transformers 4 has there, saved; the tensors of the merged model."""
    stored = load_file(base / "model.safetensors")
    linears = [
        name for name, value in stored.items()
        if value.dim() == 2 and not any(word in name for word in ("embed", "lm_head"))
    ]  # fmt: skip
    generator = torch.Generator().manual_seed(3)
    tensors, merged = {}, dict(stored)
    for name in linears:
        outputs, inputs = stored[name].shape
        a, b = (torch.randn(shape, generator=generator) * 0.2 for shape in ((4, inputs), (outputs, 4)))
        at = f"base_model.model.{name.removesuffix('.weight')}"
        tensors |= {f"{at}.lora_A.weight": a, f"{at}.lora_B.weight": b}
        merged[name] = stored[name] + 8 / 4 * b @ a
    modules = sorted({name.split(".")[-2] for name in linears})
    config_of(base, target_modules=modules).save_pretrained(directory)
    save_file(tensors, directory / "adapter_model.safetensors")
    return merged


@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral", "olmoe"])
def test_adapters_of_single_experts_are_put_together(name: str, tmp_path: Path) -> None:
    """As peft puts them; W + scale B A of each expert is the judge."""
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    base_of(name, base)
    expected = adapter_of_transformers_4(base, adapter)
    merge_adapter(adapter, tmp_path / "merged", base)
    found = load_file(tmp_path / "merged" / "model.safetensors")
    assert found.keys() == expected.keys()
    for each, value in expected.items():
        assert torch.allclose(found[each], value, atol=1e-5), each
    assert near(logits(opened(tmp_path / "merged")), logits(PeftModel.from_pretrained(opened(base), adapter)))
    model: Any = open_model(str(base), engine="generic")
    read = AdapterDirectory(adapter)
    made = GenericAdaptedModel.from_adapter(model, read, read.settings.of_base(str(base)))
    assert any("experts.base_layer.lora_A" in each for each in made.initial)


def test_adapters_that_peft_leaves_out_are_refused(tmp_path: Path) -> None:
    """Of dense layers and shared experts next to experts: peft of transformers 5 has no place for them."""
    model_type, config = ARCHITECTURES["deepseek_v3: a buffer that is saved"]
    library_model(model_type, **config).save_pretrained(tmp_path / "base")
    adapter_of_transformers_4(tmp_path / "base", tmp_path / "adapter")
    with pytest.raises(ValueError, match=r"no place for .*down_proj.* with the release that they were made"):
        merge_adapter(tmp_path / "adapter", tmp_path / "merged", tmp_path / "base")


def test_dropout_of_experts_is_refused_as_by_peft(tmp_path: Path) -> None:
    base = tmp_path / "base"
    model = base_of("qwen3_moe", base)
    lora = config_of(base, lora_dropout=0.05)
    with pytest.raises(ValueError, match=r"lora_dropout: expected 0 .*0\.05; add --lora_dropout 0, .*q_proj"):
        ours(base, tmp_path / "ours", lora)
    with pytest.raises(ValueError, match="lora_dropout"):
        get_peft_model(model, lora)
