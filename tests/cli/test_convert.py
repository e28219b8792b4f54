"""`fastsft convert`: what transformers opens has the values of the source, rounded as torch rounds them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from fastsft.cli import main as cli
from native_families import CONFIGS
from read_tensors import most_alive
from saving_run import make_trainer
from tiny_models import weights_of, write_model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: write_model(tmp_path_factory.mktemp(kind), kind, max_shard_size="40KB") for kind in CONFIGS}


def convert(source: Path, target: Path, *words: str) -> int:
    return cli.main(["convert", str(source), str(target), *words])


def state_of(directory: Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(directory, dtype="auto").state_dict()


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_transformers_opens_equal_values(kind: str, dtype: str, models, tmp_path: Path) -> None:
    """The judge rounds by itself: it loads the source and is told to be of the other type."""
    target = tmp_path / "made"
    assert convert(models[kind], target, "--dtype", dtype, "--max_shard_size", "30KB") == 0
    judge = AutoModelForCausalLM.from_pretrained(models[kind]).to(getattr(torch, dtype)).state_dict()
    made = state_of(target)
    assert made.keys() == judge.keys() and len(list(target.glob("*.safetensors"))) > 1
    assert all(
        made[name].dtype == value.dtype and torch.equal(made[name], value) for name, value in judge.items()
    )
    files = [load_file(path) for path in target.glob("*.safetensors")]
    assert all(sum(value.nbytes for value in file.values()) <= 30_000 for file in files)


def test_back_to_float32_is_exact_and_one_tensor_is_in_memory(models, tmp_path, monkeypatch) -> None:
    assert convert(models["untied"], tmp_path / "narrow", "--dtype", "bfloat16") == 0
    alive = most_alive(monkeypatch)
    assert convert(tmp_path / "narrow", tmp_path / "wide", "--dtype", "float32") == 0
    assert len(alive) > 20 and max(alive) <= 2  # the next one is read while the name of the last one lives
    narrow, wide = weights_of(tmp_path / "narrow"), weights_of(tmp_path / "wide")
    assert all(torch.equal(value.float(), wide[name]) for name, value in narrow.items())
    assert json.loads((tmp_path / "wide" / "config.json").read_text())["dtype"] == "float32"


def test_a_checkpoint_and_its_tokenizer(models, tmp_path: Path, capsys) -> None:
    trainer = make_trainer(models["qwen3"], tmp_path / "run", max_steps=2)
    trainer.train()
    checkpoint, target = tmp_path / "run" / "checkpoint-2", tmp_path / "deep" / "made"
    assert convert(checkpoint, target) == 0
    written = weights_of(checkpoint)
    assert all(torch.equal(value, written[name]) for name, value in weights_of(target).items())
    assert {"manifest.json", "tokenizer_config.json", "generation_config.json"} <= {
        path.name for path in target.iterdir()
    }
    assert not [path for path in target.iterdir() if "state" in path.name or "optimizer" in path.name]
    assert cli.main(["verify", str(target), "--against", str(checkpoint)]) == 0
    assert f"{len(written)} tensors are equal" in capsys.readouterr().out


def split_in_two(checkpoint: Path) -> None:
    """The optimizer's file as two ranks would have written it, each a part of every unit."""
    file = checkpoint / "optimizer-rank-00000-of-00001.safetensors"
    tensors = load_file(file)
    with safe_open(file, "pt") as opened:
        layout = json.loads(opened.metadata()["fastsft"])
    for rank in range(2):
        parts, units = {}, []
        for unit in layout["units"]:
            begin, end = (0, 1000) if rank == 0 else (1000, unit["end"])
            units.append({**unit, "begin": begin, "end": end})
            for kind in ("master", "exp_avg", "exp_avg_sq"):
                parts[f"{unit['name']}.{kind}"] = tensors[f"{unit['name']}.{kind}"][begin:end].clone()
        text = json.dumps({**layout, "rank": rank, "world_size": 2, "units": units})
        name = f"optimizer-rank-{rank:05d}-of-00002.safetensors"
        save_file(parts, checkpoint / name, metadata={"format": "pt", "fastsft": text})
    file.unlink()
    (checkpoint / "manifest.json").unlink()


def test_a_narrow_checkpoint_is_rounded_once_from_its_float32_weights(models, tmp_path: Path, capsys) -> None:
    """The same run that saves float32 has them as its model: steps on equal weights are equal."""
    for dtype in ("float32", "bfloat16"):
        run = make_trainer(models["tied"], tmp_path / dtype, max_steps=2, save_dtype=dtype)
        run.train()
    whole, narrow = (tmp_path / dtype / "checkpoint-2" for dtype in ("float32", "bfloat16"))
    values = weights_of(whole)
    split_in_two(narrow)
    for dtype in ("float32", "float16"):
        assert convert(narrow, tmp_path / f"made-{dtype}", "--dtype", dtype) == 0
        made = weights_of(tmp_path / f"made-{dtype}")
        assert made.keys() == values.keys()
        assert all(torch.equal(made[name], value.to(getattr(torch, dtype))) for name, value in values.items())
    file = narrow / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "model.norm.weight": tensors["model.norm.weight"] + 1}, file)
    assert convert(narrow, tmp_path / "other", "--dtype", "float32") == 1
    assert "model.norm.weight is not what the optimizer's files hold" in capsys.readouterr().err
    (narrow / "optimizer-rank-00001-of-00002.safetensors").unlink()
    assert convert(narrow, tmp_path / "other", "--dtype", "float32") == 1
    assert "a file is missing or damaged" in capsys.readouterr().err


def test_pickled_weights_become_safetensors(models, tmp_path: Path) -> None:
    source = Path(shutil.copytree(models["untied"], tmp_path / "pickled"))
    torch.save(weights_of(source), source / "pytorch_model.bin")
    for path in [*source.glob("*.safetensors"), source / "model.safetensors.index.json"]:
        path.unlink()
    assert convert(source, tmp_path / "made") == 0
    made, before = weights_of(tmp_path / "made"), weights_of(models["untied"])
    assert made.keys() == before.keys() and all(torch.equal(made[name], before[name]) for name in made)


def test_the_second_copy_of_tied_weights_is_left_out(models, tmp_path: Path, capsys) -> None:
    source = Path(shutil.copytree(models["tied"], tmp_path / "twice"))
    tensors = weights_of(source)
    for path in source.glob("model*"):
        path.unlink()
    save_file(
        {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()},
        source / "model.safetensors",
    )
    assert convert(source, tmp_path / "made") == 0
    assert "left out: lm_head.weight" in capsys.readouterr().out
    assert weights_of(tmp_path / "made").keys() == tensors.keys()
    save_file(
        {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"] + 1}, source / "model.safetensors"
    )
    assert convert(source, tmp_path / "other") == 1
    assert "they differ; set tie_word_embeddings" in capsys.readouterr().err


def _name(tensor: str, value: torch.Tensor):
    def damage(folder: Path) -> None:
        file = folder / "model.safetensors"
        save_file({**load_file(file), tensor: value}, file)

    return damage


def _tear(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])


REFUSED = {
    "a value that float16 cannot hold": (
        _name("model.norm.weight", torch.full((32,), 1e6)),
        "model.norm.weight: 32 values are beyond 65504, which float16 cannot hold; take --dtype bfloat16",
    ),
    "another shape": (_name("model.norm.weight", torch.zeros(31)), "expected shape [32], got [31]"),
    "a tensor too many": (_name("model.extra.weight", torch.zeros(2)), "has no place for model.extra.weight"),
    "a torn file": (_tear, "model.safetensors"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "found no config.json"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_converted_leaves_nothing(name: str, models, tmp_path: Path, capsys) -> None:
    source = tmp_path / "source"
    assert convert(models["untied"], source) == 0
    capsys.readouterr()
    damage, said = REFUSED[name]
    damage(source)
    (source / "manifest.json").unlink()
    assert convert(source, tmp_path / "made", "--dtype", "float16") == 1
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_nothing_is_overwritten(models, tmp_path: Path, capsys) -> None:
    for there in (tmp_path, models["untied"] / "config.json"):
        assert convert(models["untied"], there) == 1
        assert "is there already, and nothing is overwritten" in capsys.readouterr().err
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert convert(models["untied"], tmp_path / "link") == 1
    assert convert(tmp_path / "none", tmp_path / "made") == 1
    assert convert(models["untied"], tmp_path / "made", "--max_shard_size", "5 bananas") == 1
    assert not (tmp_path / "made").exists()


def test_a_size_without_unit_is_told(models, tmp_path: Path, capsys) -> None:
    assert convert(models["untied"], tmp_path / "made", "--max_shard_size", "10") == 0
    assert "--max_shard_size 10 is 10 bytes: nearly every tensor gets a file" in capsys.readouterr().out
