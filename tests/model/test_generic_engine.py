"""The generic engine: random numbers, masks, files, refusals, and its curve next to the native engine's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from engines import new_engine, train_step
from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.model.engine_choice import open_model
from fastsft.model.generic.empty_model import empty_model, library_config
from fastsft.ranks.process_group import Groups
from generic_engines import VOCAB, dataset_of, generic_engine, library_loss, library_model, random_rows
from native_families import FAMILIES

SMALL = {"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT2 = {**SMALL, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
WITHOUT_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
DECODER = {
    **SMALL, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "intermediate_size": 48, "head_dim": 8,
}  # fmt: skip
ROWS = random_rows([9, 5, 12, 7])
GROUPS = [np.arange(2), np.arange(2, 4)]
WEIGHTS = [np.full(2, 0.05), np.full(2, 0.05)]


def steps(engine: _C.Engine, count: int, first: int = 1) -> list[tuple[float, float]]:
    """Loss and gradient norm of `count` steps of two micro-batches."""
    dataset = dataset_of(ROWS)
    results = [train_step(engine, dataset, GROUPS, WEIGHTS, learning_rate=1e-3) for _ in range(count)]
    return [(result.loss, result.grad_norm) for result in results]


@pytest.mark.variants(
    "True-gemma2", "True-qwen3", "False-phi3", "False-gemma3", "True-llama", "False-mistral", "True-qwen2"
)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [False, True])
def test_curve_of_the_native_engine(family: str, tied: bool) -> None:
    settings = {**DECODER, **FAMILIES[family], "model_type": family, "tie_word_embeddings": tied}
    model = library_model(**settings)
    config = json.loads(model.config.to_json_string(use_diff=False))
    native, generic = new_engine(json.dumps(config)), generic_engine(model)
    for name, value in model.named_parameters():
        native.set_parameter(name, value.detach())
    native.publish()
    for ours, theirs in zip(steps(native, 6), steps(generic, 6), strict=True):
        assert ours[0] == pytest.approx(theirs[0], rel=1e-6)
        assert ours[1] == pytest.approx(theirs[1], rel=1e-5)
    values = native.named_parameters()
    for name, value in generic.named_parameters().items():
        assert (value - values[name]).norm() < 1e-4 * value.norm(), name


def test_dropout_of_a_step_depends_on_its_number_alone(tmp_path: Path) -> None:
    model = library_model("gpt2", **GPT2)
    one, other = generic_engine(model), generic_engine(model)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    losses = steps(one, 2)
    assert torch.equal(torch.get_rng_state(), before)
    _C.save_training_state(one, str(tmp_path))
    losses += steps(one, 2)
    assert len({round(loss, 6) for loss, _ in losses}) == 4
    torch.rand(5)
    _C.load_training_state(other, str(tmp_path))
    other.step_count = 2
    assert steps(other, 2) == losses[2:]
    values = one.named_parameters()
    assert all(torch.equal(value, values[name]) for name, value in other.named_parameters().items())


def test_dropout_goes_by_the_seed_of_a_step_that_is_given() -> None:
    """Steps that changed no weight are not in the optimizer's count, which a resumed run begins with."""
    model = library_model("gpt2", **GPT2)
    dataset = dataset_of(ROWS)
    found = []
    for count in (0, 3):
        engine = generic_engine(model)
        engine.step_count = count
        options = {"learning_rate": 0.0, "dropout_seed": 11}
        found.append(train_step(engine, dataset, GROUPS, WEIGHTS, **options).loss)
    assert found[0] == found[1]
    options["dropout_seed"] = 12
    assert train_step(engine, dataset, GROUPS, WEIGHTS, **options).loss != found[0]


@pytest.mark.parametrize("packs", [False, True])
def test_recomputed_blocks_have_the_same_bits(packs: bool) -> None:
    """With dropout, that of attention too."""
    model = library_model("gpt2", **GPT2)
    kept, again = (generic_engine(model, packs=packs, recompute=recompute) for recompute in (False, True))
    assert steps(kept, 3) == steps(again, 3)


@pytest.mark.parametrize(("family", "packs"), [("gpt2", False), ("gpt2", True), ("opt", False)])
def test_masked_tokens_keep_their_places(family: str, packs: bool) -> None:
    """Tokens of the pad id inside of a row are masked, as FastChat masks them."""
    small = {**SMALL, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48,
             "max_position_embeddings": 64, "word_embed_proj_dim": 32, "dropout": 0.0}  # fmt: skip
    model = library_model(family, **({**GPT2, **WITHOUT_DROPOUT} if family == "gpt2" else small)).train()
    rows = random_rows([9, 12])
    for ids, _ in rows:
        ids[1] = ids[5] = 0
    dataset = dataset_of(rows)
    dataset.masked_id = 0
    theirs = library_loss(model, rows, 0.05, masked_id=0)
    engine = generic_engine(model, packs=packs)
    loss, gradients = engine.gradients(dataset, np.arange(2), np.full(2, 0.05))
    assert loss == pytest.approx(theirs.item(), rel=1e-6)
    theirs.backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(gradients[name], parameter.grad, rtol=1e-4, atol=1e-6), name


def test_logits_of_rows_of_several_lengths() -> None:
    model = library_model("gpt2", **GPT2).eval()
    lengths = [len(ids) for ids, _ in ROWS]
    logits = generic_engine(model).logits(np.concatenate([ids for ids, _ in ROWS]), np.asarray(lengths))
    for (ids, _), own in zip(ROWS, logits.split(lengths), strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([ids])).logits[0]
        assert torch.allclose(own, expected, atol=1e-5)


def write(model: Any, folder: Path, rename: Any = None) -> Path:
    model.save_pretrained(folder)
    if rename is not None:
        weights = load_file(folder / "model.safetensors")
        save_file({rename(name): value for name, value in weights.items()}, folder / "model.safetensors")
    return folder


def built(folder: Path) -> Any:
    args = TrainingArguments(output_dir=str(folder / "out"), use_cpu=True)
    model = open_model(str(folder))
    assert model.engine_kind == "generic"
    return model.build(args, Groups("", "", "", "", ""))


@pytest.mark.parametrize("renamed", [False, True])
def test_names_may_lack_the_prefix_of_the_base_model(renamed: bool, tmp_path: Path) -> None:
    model = library_model("gpt2", **GPT2)
    without = (lambda name: name.removeprefix("transformer.")) if renamed else None
    values = built(write(model, tmp_path / "model", without)).named_parameters()
    for name, value in model.named_parameters():
        assert torch.equal(values[name], value)


def test_files_without_a_tensor_are_refused(tmp_path: Path) -> None:
    model = library_model("gpt2", **GPT2)
    folder = write(model, tmp_path / "model", lambda name: name.replace("ln_f.bias", "ln_g.bias"))
    with pytest.raises(
        ValueError, match=r"missing: 1 \(transformer.ln_f.bias\).*: 1 \(transformer.ln_g.bias\)"
    ):
        built(folder)


def test_rotations_have_no_table_that_ends() -> None:
    """Rows longer than max_position_embeddings, as transformers computes them."""
    model, rows = library_model("llama", **DECODER).train(), random_rows([80])
    loss = generic_engine(model).loss(dataset_of(rows), np.arange(1), np.full(1, 0.05))
    assert loss == pytest.approx(library_loss(model, rows, 0.05).item(), rel=1e-6)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "t5"}, "makes no causal language model of it"),
        ({"model_type": "no_such"}, "transformers does not take it"),
        ({"model_type": "gpt2", "vocab_size": -5}, "transformers"),
    ],
)
def test_configurations_that_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        empty_model(config, torch.float32)


def test_numbers_that_json_lacks_are_as_transformers_5_writes_them() -> None:
    infinite = {"__float__": "Infinity"}
    config = {"model_type": "mamba2", **SMALL, "hidden_size": 32, "num_hidden_layers": 1, "num_heads": 4,
              "head_dim": 16, "n_groups": 2, "time_step_limit": [0.0, infinite]}  # fmt: skip
    assert list(library_config(config).time_step_limit) == [0.0, float("inf")]
    with pytest.raises(ValueError, match=r"config\.json: could not convert string to float: 'many'"):
        library_config({**config, "time_step_limit": [{"__float__": "many"}]})


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 500.0, "rope_type": "default"},
        {"rope_theta": 500.0, "rope_type": "linear", "factor": 4.0},
    ],
)
def test_rope_in_the_words_of_transformers_5(rope: dict[str, Any]) -> None:
    """The library installed here may be older than the one that wrote the file."""
    older = {"rope_theta": 500.0, "rope_scaling": {k: v for k, v in rope.items() if k != "rope_theta"}}
    if rope["rope_type"] == "default":
        del older["rope_scaling"]
    written, same = (
        {"model_type": "phi", **DECODER, **words} for words in ({"rope_parameters": rope}, older)
    )
    frequencies = [
        {
            name: value
            for name, value in empty_model(config, torch.float32).named_buffers()
            if "inv_freq" in name
        }
        for config in (written, same)
    ]
    assert frequencies[0].keys() == frequencies[1].keys() and frequencies[0]
    assert all(torch.equal(value, frequencies[1][name]) for name, value in frequencies[0].items())


def test_rope_by_type_of_layer_in_the_words_of_transformers_5() -> None:
    rope = {
        "full_attention": {"rope_theta": 5e5, "rope_type": "linear", "factor": 4.0},
        "sliding_attention": {"rope_theta": 700.0, "rope_type": "default"},
    }
    older = {
        "rope_theta": 5e5, "rope_local_base_freq": 700.0,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    }  # fmt: skip
    if int(transformers.__version__.split(".")[0]) < 5:
        written, same = (
            dict(
                empty_model({"model_type": "gemma3_text", **DECODER, **words}, torch.float32).named_buffers()
            )
            for words in ({"rope_parameters": rope}, older)
        )
        assert any("inv_freq" in name for name in written)
        assert all(torch.equal(value, same[name]) for name, value in written.items())


@pytest.mark.parametrize("setting", [{"output_router_logits": True}, {"layerdrop": 0.1}])
def test_settings_that_would_be_trained_differently(setting: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "opt", **setting}))
    with pytest.raises(ValueError, match=f"{next(iter(setting))} is .*train with transformers' Trainer"):
        open_model(str(tmp_path))
