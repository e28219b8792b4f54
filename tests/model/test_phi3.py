"""Phi-3: its configuration, where its rotary frequencies end, and files that transformers and peft open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engines import new_engine
from fastsft import _C
from fastsft.cli import plan
from fastsft.model import CausalLM
from fastsft.model.context_length import extend_positions
from fastsft.model.engine_choice import as_model, open_model
from fastsft.model.generation import Continuation
from fastsft.model.native_support import why_not_native
from saving_run import make_trainer
from tiny_models import weights_of

SIZES: dict[str, Any] = {
    "model_type": "phi3", "vocab_size": 32064, "hidden_size": 24, "intermediate_size": 40,
    "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
SMALL = {
    **SIZES,
    "vocab_size": 70,
    "pad_token_id": 0,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
FACTORS = {"short_factor": [1.0, 1.5, 2.5], "long_factor": [2.0, 7.0, 9.0]}
LONGROPE = {"type": "longrope", **FACTORS}
LONG = {**SMALL, "rope_scaling": LONGROPE, "original_max_position_embeddings": 32}


def library_config(fields: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(**json.loads(json.dumps(fields)))  # it writes into what it is given


def library_model(fields: dict[str, Any]) -> Any:
    """With random norms."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(library_config(fields)).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=0.5, std=0.3)
    return model


def engine_of(fields: dict[str, Any], model: Any, **options: Any) -> _C.Engine:
    engine = new_engine(json.dumps(fields), **options)
    for name, value in model.named_parameters():
        engine.set_parameter(name, value.detach())
    engine.publish()
    return engine


def test_defaults_of_absent_keys() -> None:
    """Epsilon, and the row of the embedding that pads: 32000."""
    model, ids = library_model(SIZES), [5, 32000, 7, 9, 32001, 3]
    engine = engine_of(SIZES, model)
    logits = model(torch.tensor([ids])).logits[0]
    assert torch.allclose(engine.logits(np.array(ids), np.array([6])), logits, rtol=1e-5, atol=1e-6)
    torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:])).backward()
    dataset = _C.TokenDataset()
    dataset.append(np.array(ids, dtype=np.int32), [(1, 6)])
    _, gradients = engine.gradients(dataset, np.arange(1), np.full(1, 1 / 5))
    expected = model.model.embed_tokens.weight.grad
    assert torch.allclose(gradients["model.embed_tokens.weight"], expected, rtol=1e-4, atol=1e-7)
    assert not expected[32000].any() and expected[32001].any()


@pytest.mark.parametrize("name", ["longrope", "su", "yarn"])
@pytest.mark.parametrize(
    "positions",
    [
        {},
        {"max_position_embeddings": 131072},
        {"original_max_position_embeddings": 2048},
        {"max_position_embeddings": 16384, "original_max_position_embeddings": 8192},
    ],
    ids=str,
)
def test_longrope_in_all_its_names(positions: dict[str, int], name: str) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    fields = {**SIZES, **positions, "rope_scaling": {**LONGROPE, "type": name}}
    config = library_config(fields)
    expected, factor = ROPE_INIT_FUNCTIONS["longrope"](config, "cpu")
    found, found_factor, most = _C.rotary_frequencies(json.dumps(fields))
    assert torch.equal(torch.tensor(found), expected) and found_factor == pytest.approx(factor, rel=1e-12)
    assert most == config.original_max_position_embeddings
    newer = {key: value for key, value in fields.items() if key != "rope_scaling"}
    newer["rope_parameters"] = {"rope_type": name, "rope_theta": 10000.0, **FACTORS}
    assert _C.rotary_frequencies(json.dumps(newer)) == (found, found_factor, most)


def test_no_row_is_longer_than_the_original_positions() -> None:
    model, dataset = library_model(LONG), _C.TokenDataset()
    for length in (33, 34):  # the last token is not computed
        dataset.append(np.arange(length, dtype=np.int32), [(1, length)])
    one = np.full(1, 0.1)
    assert engine_of(LONG, model).loss(dataset, np.array([0]), one) > 0
    for name in ("loss", "gradients"):
        with pytest.raises(ValueError, match=r"33 positions .* beyond 32 tokens .*--model_max_length 32"):
            getattr(engine_of(LONG, model), name)(dataset, np.array([1]), one)
    with pytest.raises(ValueError, match="--model_max_length 32"):
        new_engine(json.dumps(LONG), max_positions=33)


def write(folder: Path, **changes: Any) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**LONG, **changes}))
    return str(folder)


PARTLY = {"type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 7.0]}  # two pairs of three
REASONS: dict[str, tuple[dict[str, Any], str]] = {
    "part of a head": (
        {"partial_rotary_factor": 0.75, "rope_scaling": PARTLY},
        "partial_rotary_factor 0.75, the native engine rotates whole heads",
    ),
    "part of a head, without scaling": ({"partial_rotary_factor": 0.5, "rope_scaling": None}, "factor 0.5"),
    "residual dropout": ({"resid_pdrop": 0.1}, "resid_pdrop 0.1, the native engine has no dropout"),
    "dropout of embeddings": ({"embd_pdrop": 0.1}, "embd_pdrop 0.1"),
    "dropout of attention": ({"attention_dropout": 0.1}, "attention_dropout 0.1"),
    "another activation": ({"hidden_act": "gelu"}, "hidden_act gelu, the native engine has silu"),
    "layer types": ({"layer_types": ["full_attention"] * 2}, "layer_types, which the native engine does not"),
}


@pytest.mark.variants("dropout of embeddings", "another activation", "layer types", "part of a head]")
@pytest.mark.parametrize("case", REASONS)
def test_what_goes_to_the_generic_engine(case: str, tmp_path: Path) -> None:
    changes, reason = REASONS[case]
    folder = write(tmp_path / "model", **changes)
    model: Any = open_model(folder)
    assert model.engine_kind == "generic" and reason in model.engine_words
    given: Any = as_model(library_model({**LONG, **changes}))
    assert given.engine_kind == "generic" and reason in given.engine_words
    field = next(iter(changes))
    with pytest.raises(ValueError, match=field):
        native: Any = open_model(folder, engine="native")
        native.parameter_shapes()
        native.check_as_given("Trainer", True)


def test_a_part_of_a_head_in_the_words_of_transformers_5() -> None:
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75, **PARTLY}
    config = {**LONG, "rope_scaling": None, "rope_parameters": rope}
    assert "partial_rotary_factor 0.75" in str(why_not_native(config))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {**LONGROPE, "short_factor": [1.0]}}, r'"short_factor" is \[1\.0\].* 3 positive'),
        ({"rope_scaling": {**LONGROPE, "type": "banana"}}, '"banana"'),
        ({"sliding_window": 0}, '"sliding_window" is 0, expected a positive integer'),
    ],
)
def test_what_is_wrong_anywhere_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = open_model(write(tmp_path / "model", **changes), engine="native")
    with pytest.raises(ValueError, match=message):
        model.parameter_shapes()


def test_positions_are_not_stretched(tmp_path: Path) -> None:
    """transformers does not open what FastChat would save."""
    with pytest.raises(ValueError, match="short_factor"):
        library_config({**SMALL, "rope_scaling": {"type": "linear", "factor": 2.0}})
    config = CausalLM.from_pretrained(write(tmp_path / "model")).config
    assert extend_positions(config, 64) is None
    with pytest.raises(ValueError, match="use --model_max_length 64"):
        extend_positions(config, 65)


@pytest.mark.parametrize("engine", ["native", "generic"])
def test_rows_that_no_run_has(engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One message with the flag's name: of a run before it reads data, of `fastsft plan`, of the engine."""
    folder = write(tmp_path / "model")
    model = open_model(folder, engine=engine)
    assert model.extend_context(32) is None
    with pytest.raises(ValueError, match=r"^--model_max_length 33: beyond 32 tokens .*_max_length 32, or"):
        model.extend_context(33)
    words = ["--model", folder, "--engine", engine, "--model_max_length"]
    assert plan.main([*words, "32"]) == 0
    assert plan.main([*words, "33"]) == 1
    assert "fastsft plan: --model_max_length 33: beyond 32 tokens" in capsys.readouterr().err


def test_a_trainer_names_the_flag(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^--model_max_length 33: beyond 32 tokens"):
        make_trainer(source, tmp_path / "out", model_max_length=33).train()


def test_a_row_beyond_the_original_positions_is_named(tmp_path: Path) -> None:
    """Also where its last tokens teach nothing, and are not computed."""
    model, dataset = CausalLM.from_pretrained(write(tmp_path / "model")), _C.TokenDataset()
    dataset.append(np.arange(33, dtype=np.int32), [])
    dataset.append(np.arange(32, dtype=np.int32), [(1, 32)])
    model.check_rows(dataset)
    with pytest.raises(ValueError, match="row 0 has 33 tokens: beyond 32"):
        model.check_rows(dataset, training=False)
    dataset.append(np.arange(33, dtype=np.int32), [(1, 4)])
    with pytest.raises(ValueError, match="row 7 has 33 tokens: beyond 32"):
        model.check_rows(dataset, [3, 5, 7])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    library_model(LONG).save_pretrained(tmp_path / "source")
    return tmp_path / "source"


def logits_of(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return found


def test_a_text_is_that_of_transformers(source: Path) -> None:
    """Up to the original positions, and not beyond."""
    from transformers import AutoModelForCausalLM

    model, prompt = AutoModelForCausalLM.from_pretrained(source).eval(), [1, 5, 9]
    decoder = _C.TextDecoder((source / "config.json").read_text())
    decoder.load(str(source))
    whole = model.generate(torch.tensor([prompt]), max_new_tokens=29, do_sample=False, eos_token_id=None)
    assert list(Continuation(decoder).tokens(prompt, max_new_tokens=29)) == whole[0, 3:].tolist()
    with pytest.raises(ValueError, match="beyond 32 tokens"):
        decoder.read(np.array([4, 5]))


def test_a_trained_model_of_longrope_is_opened_by_transformers(source: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    trainer = make_trainer(source, tmp_path / "out", save_strategy="no")
    trainer.train()
    trainer.save_model()
    opened, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report.values()), report
    ids = [3, 5, 7, 11, 13, 17]
    logits = trainer.engine.logits(np.array(ids), np.array([6]))
    assert torch.allclose(logits, logits_of(opened, ids), rtol=1e-4, atol=1e-5)
    before, after = (
        json.loads((folder / "config.json").read_text()) for folder in (source, tmp_path / "out")
    )
    assert after["rope_scaling"] == before["rope_scaling"]
    opened.save_pretrained(tmp_path / "again")
    ours, theirs = weights_of(tmp_path / "out"), weights_of(tmp_path / "again")
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_trained_adapters_are_opened_by_peft(source: Path, tmp_path: Path) -> None:
    from peft import LoraConfig, PeftModel
    from transformers import AutoModelForCausalLM

    lora = LoraConfig(task_type="CAUSAL_LM", r=3, target_modules=["qkv_proj", "gate_up_proj", "o_proj"])
    trainer = make_trainer(source, tmp_path / "out", lora, save_strategy="no")
    trainer.train()
    trainer.save_model()
    base = AutoModelForCausalLM.from_pretrained(source)
    ids = [3, 5, 7, 11, 13, 17]
    plain = logits_of(base, ids)
    opened = logits_of(PeftModel.from_pretrained(base, tmp_path / "out"), ids)
    ours = trainer.engine.logits(np.array(ids), np.array([6]))
    assert torch.allclose(ours, opened, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(plain, opened, rtol=1e-2)
