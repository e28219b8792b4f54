"""`fastsft verify`: a line a check for directories that are whole, and for each way in which one is not."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from doctor_patient import checks_of
from fastsft import saving
from fastsft.cli import main as cli
from fastsft.cli.demo_model import small_config, write_random_model
from fastsft.model import stored_weights
from inspected_models import LLAMA
from native_families import CONFIGS
from read_tensors import most_alive
from saving_run import make_trainer
from tiny_models import write_model

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)
NORM = "model.layers.0.input_layernorm.weight"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "2000")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama with the Llama-2 tokenizer and a chat template."""
    folder = tmp_path_factory.mktemp("sound") / "model"
    sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 24}
    write_random_model(folder, small_config(vocab_size=32000, **sizes))
    for file in LLAMA.iterdir():
        if file.name != "config.json":
            shutil.copy(file, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of a run, a checkpoint at each, and the model at its end; to be read only."""
    output = tmp_path_factory.mktemp("run")
    trainer = make_trainer(write_model(output / "base", "untied"), output / "out", max_steps=2, save_steps=1)
    trainer.train()
    saving.trainer_save_model_safe(trainer)
    return output / "out"


def verify(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, tuple[str, str]]]:
    status = cli.main(["verify", str(folder)])
    return status, checks_of(capsys.readouterr().out)


def test_a_sound_model(sound: Path, capsys, monkeypatch) -> None:
    whole = most_alive(monkeypatch)
    monkeypatch.setattr(stored_weights, "BLOCK", 1000)
    status, found = verify(sound, capsys)
    assert status == 0 and {mark for mark, _ in found.values()} == {"ok"}
    assert "12 tensors, F32" in found["tensors"][1] and "32,000 rows" in found["tokenizer"][1]
    assert "replies end with </s>" in found["template"][1] and not whole  # blocks alone are read


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_tensors_of_every_family(kind: str, tmp_path: Path, capsys) -> None:
    """Written by transformers; without a tokenizer."""
    status, found = verify(write_model(tmp_path / kind, kind, "bfloat16"), capsys)
    assert status == 1 and found["tokenizer"][0] == "failed" and found["template"][0] == "not checked"
    assert all(found[name][0] == "ok" for name in ("config", "tensors", "values", "tied weights")), found


def test_a_checkpoint_and_a_finished_model(run: Path, capsys) -> None:
    _, found = verify(run / "checkpoint-1", capsys)
    assert "checksums as in the manifest of step 1" in found["files"][1]
    assert found["state"] == ("ok", "step 1 of 1 rank; optimizer and progress are there")
    _, found = verify(run, capsys)
    assert found["files"][0] == "ok" and "checksums as fastsft noted them" in found["files"][1]
    assert cli.main(["verify", str(run), "--against", str(run / "checkpoint-2")]) == 0
    assert cli.main(["verify", str(run), "--against", str(run / "checkpoint-1")]) == 1


def _edit(name: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        file = folder / "model.safetensors"
        tensors = load_file(file)
        changed = change(tensors.pop(name))
        save_file(tensors if changed is None else {**tensors, name: changed}, file)

    return damage


def _poison(value: torch.Tensor) -> torch.Tensor:
    value[3], value[5] = float("nan"), float("inf")
    return value


def _set(**fields: object) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return damage


def _tear(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", (folder / "model.safetensors").stat().st_size - 4)


def _fifo(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")


def _write(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


# name -> (damage, check, mark, a part of what is said)
DAMAGES = {
    "nan": (_edit(NORM, _poison), "values", "failed", f"{NORM}: 2 of 16 values are not finite"),
    "missing": (_edit(NORM, lambda _: None), "tensors", "failed", f"missing: {NORM}"),
    "shape": (_edit(NORM, lambda t: t[:8].clone()), "tensors", "failed", "expected shape [16], got [8]"),
    "type": (_edit(NORM, lambda t: t.to(torch.int32)), "tensors", "failed", "got I32"),
    "dtype of config": (_set(torch_dtype="bfloat16"), "tensors", "warning", "config.json says bfloat16"),
    "torn": (_tear, "tensors", "failed", "model.safetensors"),
    "unread": (_tear, "values", "not checked", "needs weight files that can be read"),
    "fifo": (_fifo, "tensors", "failed", "FIFO"),
    "family": (_set(model_type="mumba"), "config", "failed", "mumba"),
    "ties": (_set(tie_word_embeddings=True), "tied weights", "failed", "stored with other values"),
    "rows": (_set(vocab_size=31999), "tokenizer", "failed", "32,000 tokens, and 31,999 rows"),
    "ids": (_set(eos_token_id=7), "tokenizer", "warning", "7 in config.json, 2 in the tokenizer"),
    "tokenizer": (_write("tokenizer.model", "x"), "tokenizer", "failed", "tokenizer.model"),
    "template": (_write("chat_template.jinja", "{% for %}"), "template", "failed", "template"),
    "no template": (
        lambda folder: (folder / "chat_template.jinja").unlink(), "template", "not checked", "no chat",
    ),
    "manifest": (_write("manifest.json", "{}"), "files", "failed", "manifest.json"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_model(name: str, sound: Path, tmp_path: Path, capsys) -> None:
    folder = Path(shutil.copytree(sound, tmp_path / "model"))
    damage, check, mark, said = DAMAGES[name]
    damage(folder)
    status, found = verify(folder, capsys)
    assert found[check][0] == mark and said in found[check][1], found
    assert status == (1 if mark == "failed" or name == "unread" else 0)
    assert mark == "not checked" or "-> " in found[check][1]


def test_an_index_that_names_another_file(tmp_path: Path, capsys) -> None:
    folder = write_model(tmp_path / "model", "untied", max_shard_size="20KB")
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    last = max(index["weight_map"].values())
    index["weight_map"][EMBEDDING] = last
    path.write_text(json.dumps(index))
    found = verify(folder, capsys)[1]["tensors"]
    assert found[0] == "failed" and f"{EMBEDDING}: the index says {last}, it is in model-00001" in found[1]


def test_a_snapshot_of_the_hub_is_links(tmp_path: Path, capsys) -> None:
    blobs, snapshot = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b" / "snapshots" / "c0ffee"
    write_model(blobs, "untied", max_shard_size="20KB")
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(blobs.iterdir())):
        os.rename(path, blobs / f"{number:040x}")
        (snapshot / path.name).symlink_to(f"../../blobs/{number:040x}")
    found = verify(snapshot, capsys)[1]
    assert found["tensors"][0] == found["values"][0] == "ok", found
    assert cli.main(["convert", str(snapshot), str(tmp_path / "made")]) == 0
    assert cli.main(["verify", str(snapshot), "--against", str(tmp_path / "made")]) == 0


def _flip(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / name
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)

    return damage


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer-rank-00000-of-00001.safetensors"])
def test_a_flipped_bit_of_a_checkpoint(name: str, run: Path, tmp_path: Path, capsys) -> None:
    folder = Path(shutil.copytree(run / "checkpoint-2", tmp_path / "checkpoint-2"))
    _flip(name)(folder)
    status, found = verify(folder, capsys)
    assert status == 1 and found["files"][0] == "failed" and name in found["files"][1]
    (folder / "manifest.json").unlink()
    assert "was never finished" in verify(folder, capsys)[1]["files"][1]


def test_files_of_a_finished_model_that_changed(run: Path, tmp_path: Path, capsys) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "out"))
    _set(note="mine")(folder)
    files = verify(folder, capsys)[1]["files"]
    assert files[0] == "warning" and "changed since fastsft wrote them: config.json" in files[1]
    _flip("model.safetensors")(folder)
    files = verify(folder, capsys)[1]["files"]
    assert files[0] == "failed" and "model.safetensors" in files[1]
    (folder / "model.safetensors").unlink()
    status, found = verify(folder, capsys)
    assert status == 1 and found["tensors"][0] == "failed" and found["values"][0] == "not checked"


def test_two_models_by_tensor(sound: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    other = Path(shutil.copytree(sound, tmp_path / "other"))
    tensors = load_file(other / "model.safetensors")
    tensors[NORM][2] += 0.25
    tensors[EMBEDDING][0, 0] = float("nan")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.float64)  # the same values
    tensors["extra"], _ = torch.zeros(1), tensors.pop(HEAD)
    save_file(tensors, other / "model.safetensors")
    monkeypatch.setattr(stored_weights, "BLOCK", 1000)
    assert cli.main(["verify", str(sound), "--against", str(other)]) == 1
    said = capsys.readouterr().out
    assert f"{NORM}: max abs difference 0.25, 1 of 16 values, F32\n" in said
    assert f"{EMBEDDING}: max abs difference inf, 1 of 512,000 values, F32\n" in said
    assert f"{HEAD}: not in {other}\n" in said and f"extra: not in {sound}\n" in said
    assert f"9 tensors are equal, 2 differ (at most inf, in {EMBEDDING}), 2 are in one alone\n" in said
    assert cli.main(["verify", str(other), "--against", str(other)]) == 0  # not a number is itself


@pytest.mark.parametrize("words", [["./nowhere"], [".", "--against", "./nowhere"], [__file__]])
def test_what_is_no_directory(words: list[str], capsys) -> None:
    assert cli.main(["verify", *words]) == 2
    error = capsys.readouterr().err
    expected = "got the file" if words == [__file__] else "./nowhere is not a directory; "
    assert expected in error and len(error.splitlines()) == 1
