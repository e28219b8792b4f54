"""A PeftModel given to Trainer: the losses of transformers' Trainer, and trained adapters in the object."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback

import fastsft
from fastsft.runtime.messages import collected
from trainer_pairs import FLAGS, VOCABULARY, WIDTH, Plain, model, ours, theirs, unrounded

_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
_CASES: dict[str, dict[str, Any]] = {
    "q and v": {"target_modules": ["q_proj", "v_proj"], "lora_alpha": 16},
    "all, ranks, rsLoRA": {"target_modules": _LINEAR, "use_rslora": True, "rank_pattern": {"k_proj": 3}},
    "norms whole": {"target_modules": ["o_proj"], "modules_to_save": ["norm"]},
    "head whole": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
}


def wrapped(**fields: Any) -> Any:
    """A PeftModel with random adapters."""
    base = model()
    torch.manual_seed(4)
    made = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=4, **fields))
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    return made


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def trained(module: Any) -> dict[str, torch.Tensor]:
    return {name: each.detach().clone() for name, each in module.named_parameters() if each.requires_grad}


@pytest.mark.parametrize("case", _CASES)
def test_it_is_trained_as_by_transformers(case: str, tmp_path: Path, monkeypatch) -> None:
    unrounded(monkeypatch)
    mine, judge = wrapped(**_CASES[case]), wrapped(**_CASES[case])
    frozen = {name: each.clone() for name, each in mine.named_parameters() if not each.requires_grad}
    before = trained(mine)
    reference = theirs(tmp_path / "theirs", Plain(), module=judge)
    reference.train()
    trainer = ours(tmp_path / "ours", Plain(), module=mine)
    trainer.train()
    assert losses(trainer) == pytest.approx(losses(reference), abs=1e-5, rel=0)
    expected, found = trained(judge), trained(mine)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name] - value).norm() <= 1e-4 * value.norm(), name
        assert not torch.equal(found[name], before[name])
    assert all(torch.equal(dict(mine.named_parameters())[name], value) for name, value in frozen.items())

    trainer.save_model()
    again = PeftModel.from_pretrained(model(), tmp_path / "ours")
    ids = torch.arange(2, 12)[None]
    assert torch.equal(again(input_ids=ids).logits, mine.eval()(input_ids=ids).logits)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_other_random_numbers_of_dropout_are_told(dropout: float, tmp_path: Path) -> None:
    with collected() as notices:
        trainer = ours(tmp_path, Plain(), module=wrapped(target_modules=["q_proj"], lora_dropout=dropout))
        trainer.train()
    assert sum("lora_dropout: as many inputs" in line for line in notices.told) == (dropout > 0)


class _Reading(TrainerCallback):
    """Copies the adapters after each step, as a callback that logs their norms would."""

    def __init__(self) -> None:
        self.seen: list[dict[str, torch.Tensor]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self.seen.append(trained(model))


def test_who_reads_adapters_while_they_are_trained_gets_the_newest(tmp_path: Path) -> None:
    module, callback = wrapped(target_modules=["q_proj"]), _Reading()
    trainer = ours(tmp_path, Plain(), module=module)
    trainer.add_callback(callback)
    trainer.train()
    assert len(callback.seen) == trainer.state.global_step
    for earlier, later in zip(callback.seen, callback.seen[1:], strict=False):
        assert all(not torch.equal(earlier[name], value) for name, value in later.items())
    last = trained(module)
    assert all(torch.equal(value, callback.seen[-1][name]) for name, value in last.items())


def _frozen(module: Any) -> Any:
    next(each for name, each in module.named_parameters() if "lora_A" in name).requires_grad_(False)
    return module


def _two(module: Any) -> Any:
    module.add_adapter("other", LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"]))
    return module


def _merged(module: Any) -> Any:
    module.merge_adapter()
    return module


def _scaled(module: Any) -> Any:
    for layer in module.modules():
        if hasattr(layer, "lora_A"):
            layer.scaling["default"] = 7.0
    return module


def _hooked(module: Any) -> Any:
    module.get_base_model().model.layers[0].mlp.register_forward_hook(lambda *given: given[-1] * 2)
    return module


def _hooked_adapter(module: Any) -> Any:
    layer = next(each for each in module.modules() if hasattr(each, "lora_A"))
    layer.lora_A["default"].register_forward_hook(lambda *given: given[-1] * 2)
    return module


def _own_forward(module: Any) -> Any:
    layer = next(each for each in module.modules() if hasattr(each, "lora_A"))
    layer.forward = lambda x: x
    return module


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_frozen, "expected trained, .* by its LoraConfig, got frozen"),
        (_two, "has the adapters default, other"),
        (_merged, "is merged"),
        (_scaled, "has scale 7.0"),
        (_hooked, "forward hook"),
        (_hooked_adapter, "forward hook"),
        (_own_forward, "has a forward of its own"),
    ],
)
def test_what_is_not_as_its_config_says_is_refused(change: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        ours(tmp_path, Plain(), module=change(wrapped(target_modules=["q_proj", "v_proj"])))


def test_dora_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="use_dora: expected False, got True"):
        ours(tmp_path, Plain(), module=wrapped(target_modules=["q_proj"], use_dora=True))


def test_a_base_model_is_whole_again_after_the_checks(tmp_path: Path) -> None:
    module = wrapped(target_modules=["q_proj"], modules_to_save=["lm_head"])
    names = [name for name, _ in module.named_modules()]
    kept = copy.deepcopy(module.state_dict())
    ours(tmp_path, Plain(), module=module)
    assert [name for name, _ in module.named_modules()] == names
    assert all(torch.equal(value, module.state_dict()[name]) for name, value in kept.items())


def test_a_checkpoint_goes_on_over_its_own_base_model_alone(tmp_path: Path) -> None:
    """The module's frozen values count; a whole module and biases that are trained do not."""
    flags = {"save_strategy": "steps", "save_steps": 2}
    fields = {"target_modules": ["o_proj"], "modules_to_save": ["norm"]}
    whole = ours(tmp_path, Plain(), module=wrapped(**fields), **flags)
    whole.train()
    last = sorted(tmp_path.glob("checkpoint-*"))[0]
    again = ours(tmp_path, Plain(), module=wrapped(**fields), **flags)
    again.train(resume_from_checkpoint=str(last))
    assert losses(again) == losses(whole)
    other = wrapped(**fields)
    with torch.no_grad():
        other.get_base_model().model.embed_tokens.weight[3] += 0.1
    with pytest.raises(ValueError, match="was trained over a base model with other weights"):
        ours(tmp_path, Plain(), module=other, **flags).train(resume_from_checkpoint=str(last))


@pytest.mark.parametrize("way", ["PeftModel", "peft_config"])
def test_a_base_model_without_native_engine_is_named_with_the_way_out(tmp_path: Path, way: str) -> None:
    """The way out is that of docs/lora.md, and it trains."""
    base = GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=16, n_layer=1, n_head=2, pad_token_id=0)
    )
    config = LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    base.save_pretrained(tmp_path / "base")
    message = r"GPT2LMHeadModel, and gpt2 has no native engine.*directory>, peft_config="
    with pytest.raises(ValueError, match=message):
        if way == "PeftModel":
            ours(tmp_path / "out", Plain(), module=get_peft_model(base, config))
        else:
            make_trainer(tmp_path / "out", base, config)
    config.fan_in_fan_out = False
    trainer = make_trainer(tmp_path / "out", str(tmp_path / "base"), config)
    trainer.train()
    assert len(losses(trainer)) == 1


def make_trainer(output: Path, base: Any, config: LoraConfig, **flags: Any) -> Any:
    values = {**FLAGS, "max_steps": 1, "model_max_length": WIDTH, "plot_loss": False, **flags}
    args = fastsft.TrainingArguments(str(output), **values)
    return fastsft.Trainer(base, args, None, Plain(), peft_config=config)


_SAVING = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
_QV = {"target_modules": ["q_proj", "v_proj"]}
_CAUSAL = {"task_type": "CAUSAL_LM", "r": 4, **_QV}


def go_on_from_step_2(trainer: Any) -> list[float]:
    trainer.train(resume_from_checkpoint=str(Path(trainer.args.output_dir) / "checkpoint-2"))
    return losses(trainer)


def test_frozen_originals_of_trained_modules_do_not_count(tmp_path: Path) -> None:
    """Rows of new tokens are drawn anew at each start; the checkpoint has the trained ones."""

    def grown(seed: int) -> Any:
        base = model()
        torch.manual_seed(seed)
        base.resize_token_embeddings(VOCABULARY + 8)
        config = LoraConfig(task_type="CAUSAL_LM", modules_to_save=["embed_tokens", "lm_head"], **_QV)
        return ours(tmp_path, Plain(), module=get_peft_model(base, config), **_SAVING)

    whole = grown(1)
    whole.train()
    assert go_on_from_step_2(grown(2)) == losses(whole)


def _grown(folder: Path, base: Path, seed: int) -> Any:
    """A trainer of a model that was read from `base`, with rows for new tokens."""
    read = model()
    read.name_or_path = str(base)
    torch.manual_seed(seed)
    read.resize_token_embeddings(VOCABULARY + 8)
    return ours(folder / "out", Plain(), module=get_peft_model(read, LoraConfig(**_CAUSAL)), **_SAVING)


@pytest.mark.parametrize("found", ["at the begin", "at the resume"])
def test_a_resized_model_goes_on_whether_its_base_model_is_found_or_not(found: str, tmp_path: Path) -> None:
    """Where it is not found, and in checkpoints of older versions, no rows are saved along."""
    base, away = tmp_path / "base", tmp_path / "away"
    model().save_pretrained(base if found == "at the begin" else away)
    whole = _grown(tmp_path, base, 1)
    assert bool(whole.model.extra_tensors()) == (found == "at the begin")
    whole.train()
    (base if found == "at the begin" else away).rename(away if found == "at the begin" else base)
    assert go_on_from_step_2(_grown(tmp_path, base, 1)) == losses(whole)
    if found == "at the begin":  # the checkpoint has the rows
        assert go_on_from_step_2(_grown(tmp_path, base, 2)) == losses(whole)
    else:
        with pytest.raises(ValueError, match="was trained over a base model with other weights"):
            go_on_from_step_2(_grown(tmp_path, base, 2))


@pytest.mark.parametrize("begun", ["directory", "model"])
def test_a_directory_and_a_model_made_of_it_go_on_from_each_other(begun: str, tmp_path: Path) -> None:
    base = model()
    base.save_pretrained(tmp_path / "base")
    given = {"directory": str(tmp_path / "base"), "model": base}

    def trainer(kind: str) -> Any:
        config = LoraConfig(task_type="CAUSAL_LM", r=4, **_QV)
        return make_trainer(tmp_path / "out", given[kind], config, **_SAVING)

    trainer(begun).train()
    rest = go_on_from_step_2(trainer("model" if begun == "directory" else "directory"))
    assert len(rest) == 4


def test_a_base_model_of_another_type_goes_on_with_a_line(tmp_path: Path) -> None:
    ours(tmp_path, Plain(), module=wrapped(**_QV), **_SAVING).train()
    narrow = wrapped(**_QV)
    narrow.get_base_model().bfloat16()
    with collected() as notices:
        go_on_from_step_2(ours(tmp_path, Plain(), module=narrow, **_SAVING))
    wanted = "the type of the base weights was float32, now it is bfloat16"
    assert any(wanted in line for line in notices.warned), notices


def test_the_identity_of_the_base_weights_asks_once_what_is_saved_along(tmp_path: Path, monkeypatch) -> None:
    """It walks the module, and each checkpoint has the identity."""
    trained = ours(tmp_path, Plain(), module=wrapped(**_QV)).model
    asked, extra_tensors = [], trained.extra_tensors
    monkeypatch.setattr(trained, "extra_tensors", lambda: asked.append(1) or extra_tensors())
    assert trained.base_weights().startswith("values of float32: ")
    assert len(asked) == 1
