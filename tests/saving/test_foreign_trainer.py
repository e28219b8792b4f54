"""trainer_save_model_safe on real transformers trainers; FastChat's own function is the judge."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file

import foreign_run
from fastsft.checkpoint.external.state import _renamed, state_entries
from fastsft.checkpoint.external.units import NotStreamable, _check_is_ordinary
from fastsft.model.output_directory import recover_directory
from fastsft.runtime.launch import Launch
from fastsft.runtime.output_files import RECORD_NAME
from ranks import run_ranks
from releases import of_release_4

FUSED = of_release_4(
    "experts are one tensor in memory and many on disk; the Trainer's own way of saving is taken"
)

# What training_args.bin holds is in training_args.json.
FILES = {
    RECORD_NAME,
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer_config.json",
    "training_args.json",
}


def tensors_of(directory: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in sorted(directory.glob("*.safetensors")):
        found.update(load_file(path))
    return found


def same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype, name
        assert torch.equal(tensor, theirs[name]), name
    return True


def check_equal(output: Path, model_name: str) -> None:
    ours, theirs = output / "ours", output / "theirs"
    names = {path.name for path in ours.iterdir()}
    assert names == ({*FILES} if model_name != "bert" else FILES - {"generation_config.json"})
    found, expected = tensors_of(ours), tensors_of(theirs)
    model = getattr(transformers, foreign_run.MODELS[model_name][0]).from_pretrained(ours)
    # FSDP1's full state dict clones tied weights, so that FastChat saves them twice.
    for name in expected.keys() - found.keys():
        assert any(re.search(pattern, name) for pattern in model._tied_weights_keys), name
        assert torch.equal(model.state_dict()[name], expected.pop(name))
    assert same(found, expected)
    for name in names & {"config.json", "generation_config.json", "tokenizer_config.json"}:
        assert json.loads((ours / name).read_text()) == json.loads((theirs / name).read_text()), name


@pytest.mark.variants(
    "[fsdp1]", "[fsdp2_hybrid]", "[fsdp2_by_columns]", "[ddp]", "[fsdp1_mixed]", "[fsdp1_orig]"
)
@pytest.mark.parametrize("wrap", foreign_run.WRAPS)
def test_every_wrapping(tmp_path: Path, wrap: str) -> None:
    ranks = 4 if wrap.endswith("hybrid") else 3 if wrap == "fsdp2" else 2
    run_ranks(ranks, foreign_run.save_both, "llama", wrap, tmp_path)
    check_equal(tmp_path, "llama")


@pytest.mark.covering
@pytest.mark.parametrize("wrap", ["fsdp1", "fsdp1_orig", "fsdp2"])
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(name, marks=FUSED) if name == "mixtral" else name
        for name in foreign_run.MODELS
        if name != "llama"
    ],
)
def test_every_architecture(tmp_path: Path, model: str, wrap: str) -> None:
    run_ranks(2, foreign_run.save_both, model, wrap, tmp_path, False)
    check_equal(tmp_path, model)


def tree(directory: Path) -> dict[str, bytes]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


@pytest.mark.covering
@pytest.mark.parametrize("wrap", ["fsdp1", "fsdp2", "plain"])
@pytest.mark.parametrize("where", ["tokenizer", "disk", "other rank"])
def test_failures_reach_all_ranks_and_leave_the_old_files(tmp_path: Path, wrap: str, where: str) -> None:
    (tmp_path / "config.json").write_text("old")
    (tmp_path / "model.safetensors").write_text("old")
    before = tree(tmp_path)
    outcomes = run_ranks(2, foreign_run.fail_to_save, wrap, where, tmp_path)
    assert all(foreign_run.FAILURES[where] in outcome for outcome in outcomes), outcomes
    assert tree(tmp_path) == before


def test_files_take_their_names_together(
    tmp_path: Path, alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies before the first file has its name leaves the old model; the next save finishes."""
    old = {"config.json": b"{}", "model.safetensors": b"old"}
    for name, content in old.items():
        (tmp_path / name).write_bytes(content)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    trainer = foreign_run.make_trainer(foreign_run.make_model("llama"), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("fastsft._C.install_file_set", die)
        with pytest.raises(KeyboardInterrupt):
            foreign_run.saving.trainer_save_model_safe(trainer)
    assert {name: (tmp_path / name).read_bytes() for name in old} == old
    assert recover_directory(tmp_path) == []
    trainer.model.save_pretrained(tmp_path / "theirs")
    assert same(tensors_of(tmp_path), tensors_of(tmp_path / "theirs"))
    (aside,) = tmp_path.glob("previous-*-files")  # of another program: kept
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == old
    assert {path.name for path in tmp_path.iterdir()} == {*FILES, "theirs", aside.name} | {RECORD_NAME}


def test_folders_of_a_tokenizer_arrive(tmp_path: Path, alone: None) -> None:
    class Templates(foreign_run.Tokens):
        def save_pretrained(self, directory: str) -> None:
            super().save_pretrained(directory)
            Path(directory, "additional_chat_templates").mkdir()
            Path(directory, "additional_chat_templates", "tool.jinja").write_text("x")

    trainer = foreign_run.make_trainer(foreign_run.make_model("llama"), tmp_path)
    trainer.processing_class = Templates()
    foreign_run.saving.trainer_save_model_safe(trainer)
    assert (tmp_path / "additional_chat_templates" / "tool.jinja").read_text() == "x"


def test_ranks_with_different_models_do_not_wait_for_each_other(tmp_path: Path) -> None:
    for outcome in run_ranks(2, foreign_run.save_different_models, tmp_path):
        assert "rank 1 has other weights than rank 0" in outcome


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer in this process."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_types_stay_as_they_are(tmp_path: Path, alone: None, dtype: torch.dtype) -> None:
    model = foreign_run.make_model("llama").to(dtype)
    model.model.norm.float()
    foreign_run.saving.trainer_save_model_safe(foreign_run.make_trainer(model, tmp_path / "ours"))
    model.save_pretrained(tmp_path / "theirs")
    assert same(tensors_of(tmp_path / "ours"), tensors_of(tmp_path / "theirs"))
    with safe_open(tmp_path / "ours" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_several_files(tmp_path: Path, alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = foreign_run.make_model("llama")
    (tmp_path / "ours").mkdir()
    for stale in ("model.safetensors", "model-00001-of-00077.safetensors"):
        (tmp_path / "ours" / stale).write_bytes(b"of an earlier save")
    model.save_pretrained(tmp_path / "theirs", max_shard_size="9KB")

    def limited(directory: str, max_shard_size: str = "9KB", **options: object) -> None:
        type(model).save_pretrained(model, directory, **options)

    monkeypatch.setattr(model, "save_pretrained", limited)
    foreign_run.saving.trainer_save_model_safe(foreign_run.make_trainer(model, tmp_path / "ours"))
    index = "model.safetensors.index.json"
    assert (tmp_path / "ours" / index).read_text() == (tmp_path / "theirs" / index).read_text()
    names = [{path.name for path in (tmp_path / who).glob("model*")} for who in ("ours", "theirs")]
    assert names[0] == names[1] and len(names[0]) > 5
    for name in names[0] - {index}:
        assert same(load_file(tmp_path / "ours" / name), load_file(tmp_path / "theirs" / name))


def test_settings_that_transformers_refuses_lose_no_run(tmp_path: Path, alone: None) -> None:
    model = foreign_run.make_model("llama")
    model.generation_config.temperature, model.generation_config.do_sample = 0.3, False
    with pytest.raises(ValueError, match="temperature"):
        model.save_pretrained(tmp_path / "theirs")
    with pytest.warns(UserWarning, match="transformers objects"):
        foreign_run.saving.trainer_save_model_safe(foreign_run.make_trainer(model, tmp_path / "ours"))
    assert {path.name for path in (tmp_path / "ours").iterdir()} == FILES
    saved = json.loads((tmp_path / "ours" / "generation_config.json").read_text())
    assert saved["temperature"] == 0.3


def test_the_source_of_the_model_stays(tmp_path: Path, alone: None) -> None:
    foreign_run.make_model("llama").save_pretrained(tmp_path)
    before = tree(tmp_path)
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    torch.nn.init.zeros_(model.lm_head.weight)
    with pytest.warns(UserWarning, match="never overwritten"):
        foreign_run.saving.trainer_save_model_safe(foreign_run.make_trainer(model, tmp_path))
    after = tree(tmp_path)
    assert {name: after[name] for name in before} == before
    assert not tensors_of(tmp_path / "fine-tuned")["lm_head.weight"].any()


def test_undeclared_sharing_is_saved_under_every_name(tmp_path: Path, alone: None) -> None:
    model = foreign_run.make_model("llama")
    layers = model.model.layers
    layers[1].mlp.up_proj.weight = layers[0].mlp.up_proj.weight
    foreign_run.saving.trainer_save_model_safe(foreign_run.make_trainer(model, tmp_path))
    assert same(tensors_of(tmp_path), dict(model.state_dict()))


def test_renaming_by_transformers_is_followed_and_conversion_is_not() -> None:
    """What its fifth version does to a state dict while saving."""
    entries = state_entries(torch.nn.Linear(2, 3), Launch())
    backwards = _renamed(lambda state: {f"x.{name}": state[name] for name in reversed(state)}, entries)
    assert [(entry.name, entry.shape) for entry in backwards] == [("x.bias", (3,)), ("x.weight", (3, 2))]
    with pytest.raises(NotStreamable, match="converts"):
        _renamed(lambda state: {name: tensor.clone() for name, tensor in state.items()}, entries)


class Own(transformers.Trainer):
    """Saves in its own way."""

    def _save(self, output_dir=None, state_dict=None):
        super()._save(output_dir, state_dict)
        Path(self.args.output_dir, "own").touch()


def test_own_ways_of_saving_are_kept(tmp_path: Path, alone: None) -> None:
    model = foreign_run.make_model("llama")
    with pytest.warns(UserWarning, match="Own overrides _save"):
        foreign_run.saving.trainer_save_model_safe(foreign_run.make_trainer(model, tmp_path, Own))
    assert (tmp_path / "own").exists() and same(tensors_of(tmp_path), dict(model.state_dict()))


class WithState(torch.nn.Linear):
    """Saves more than its parameters."""

    def get_extra_state(self):
        return {"x": 1}


def test_modules_with_a_state_of_their_own_are_not_streamed() -> None:
    hooked = torch.nn.Linear(2, 2)
    hooked.register_state_dict_post_hook(lambda *_: None)
    for module in (WithState(2, 2), hooked):
        with pytest.raises(NotStreamable, match="part"):
            _check_is_ordinary("part.", module)
    _check_is_ordinary("part.", torch.nn.Linear(2, 2))
    model = torch.nn.Sequential(WithState(2, 2))
    with pytest.raises(NotStreamable, match="no tensor"):
        state_entries(model, Launch())


def test_weights_without_values(tmp_path: Path, alone: None) -> None:
    trainer = foreign_run.make_trainer(foreign_run.make_model("llama").to("meta"), tmp_path)
    with pytest.raises(ValueError, match="meta device"):
        foreign_run.saving.trainer_save_model_safe(trainer)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"save_safetensors": False}, marks=of_release_4("there is no such argument")),
        {"save_on_each_node": True},
    ],
)
def test_arguments_that_need_the_trainers_own_way(tmp_path: Path, alone: None, options: dict) -> None:
    trainer = foreign_run.make_trainer(foreign_run.make_model("llama"), tmp_path, **options)
    with pytest.warns(UserWarning, match="in its own way: --save"):
        foreign_run.saving.trainer_save_model_safe(trainer)
    assert (tmp_path / "training_args.bin").exists()


def test_models_that_transformers_does_not_know(tmp_path: Path, alone: None) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    trainer = foreign_run.make_trainer(model, tmp_path / "ours")
    foreign_run.saving.trainer_save_model_safe(trainer)
    trainer.save_model(str(tmp_path / "theirs"))
    assert same(tensors_of(tmp_path / "ours"), tensors_of(tmp_path / "theirs"))


def test_a_trainer_of_another_kind(tmp_path: Path) -> None:
    """Whatever has model, args and tokenizer."""
    model = foreign_run.make_model("gpt2")
    args = SimpleNamespace(output_dir=str(tmp_path))
    trainer = SimpleNamespace(model=model, args=args, tokenizer=foreign_run.Tokens())
    foreign_run.saving.trainer_save_model_safe(trainer)
    assert {path.name for path in tmp_path.iterdir()} == FILES - {"training_args.json"}
    reloaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    assert same(dict(reloaded.state_dict()), dict(model.state_dict()))


def test_compiled_models(tmp_path: Path, alone: None) -> None:
    model = foreign_run.make_model("llama")
    trainer = foreign_run.make_trainer(torch.compile(model), tmp_path)
    foreign_run.saving.trainer_save_model_safe(trainer)
    assert same(tensors_of(tmp_path), dict(model.state_dict()))
