"""The files of a tokenizer: which links are followed, and that a save writes what was there at the start."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from fastsft.data.token_cache import tokenizer_digest
from fastsft.tokenizer import Tokenizer
from golden_text import GOLDEN

SOURCE = GOLDEN / "tokenizers" / "llama2_legacy"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SOURCE, tmp_path / "model"))


def saved(tokenizer: Tokenizer, folder: Path) -> dict[str, bytes]:
    tokenizer.save_pretrained(folder)
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_files_removed_or_changed_since_are_saved_as_they_were(model: Path, tmp_path: Path) -> None:
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "tool.jinja").write_text("{{ messages }}")
    tokenizer = Tokenizer.from_pretrained(model, model_max_length=64)
    before, digest = saved(tokenizer, tmp_path / "a"), tokenizer_digest(tokenizer)
    (model / "tokenizer_config.json").write_text("spoiled")
    for path in [*model.rglob("*.model"), *model.rglob("*.jinja")]:
        path.unlink()
    assert saved(tokenizer, tmp_path / "b") == before
    assert tokenizer_digest(tokenizer) == digest
    assert "tokenizer.model" in before and "additional_chat_templates/tool.jinja" in before


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "added_tokens.json", "chat_template.jinja"])
def test_a_link_out_of_the_model_is_refused(model: Path, tmp_path: Path, name: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("{}")
    (model / name).unlink(missing_ok=True)
    (model / name).symlink_to(secret)
    with pytest.raises(ValueError, match=f'"{name}" is a link that leaves the directory, to {secret}'):
        Tokenizer.from_pretrained(model, model_max_length=64)


@pytest.mark.parametrize("folder", [False, True])
def test_templates_behind_links_are_refused(model: Path, tmp_path: Path, folder: bool) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "x.jinja").write_text("secret")
    templates = model / "additional_chat_templates"
    if folder:
        templates.symlink_to(elsewhere)
    else:
        templates.mkdir()
        (templates / "x.jinja").symlink_to(elsewhere / "x.jinja")
    with pytest.raises(ValueError, match="is a link that leaves the directory"):
        Tokenizer.from_pretrained(model, model_max_length=64)


def test_links_inside_and_those_of_the_hub_cache_work(tmp_path: Path) -> None:
    """A snapshot as huggingface_hub makes it: links into the blobs of the same repository."""
    repository = tmp_path / "models--a--b"
    blobs, snapshot = repository / "blobs", repository / "snapshots" / "0123"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(SOURCE.iterdir())):
        if path.is_file():
            shutil.copyfile(path, blobs / f"{number:040x}")
            (snapshot / path.name).symlink_to(f"../../blobs/{number:040x}")
    (snapshot / "additional_chat_templates").mkdir()
    (blobs / "ff").write_text("{{ messages }}")
    (snapshot / "additional_chat_templates" / "x.jinja").symlink_to("../../../blobs/ff")
    (snapshot / "chat_template.jinja").symlink_to("additional_chat_templates/x.jinja")
    plain = Tokenizer.from_pretrained(SOURCE, model_max_length=64)
    files = saved(Tokenizer.from_pretrained(snapshot, model_max_length=64), tmp_path / "a")
    assert {name: content for name, content in files.items() if "jinja" not in name} == saved(
        plain, tmp_path / "b"
    )
    assert files["chat_template.jinja"] == files["additional_chat_templates/x.jinja"] == b"{{ messages }}"
    assert not any(path.is_symlink() for path in (tmp_path / "a").rglob("*"))
    other = tmp_path / "models--c--d" / "blobs"
    other.mkdir(parents=True)
    (other / "ff").write_text("secret")
    (snapshot / "merges.txt").symlink_to(other / "ff")
    with pytest.raises(ValueError, match=r'"merges.txt" is a link that leaves the directory'):
        Tokenizer.from_pretrained(snapshot, model_max_length=64)


@pytest.mark.parametrize("kind", ["fifo", "directory", "huge"])
def test_what_is_no_file_of_a_tokenizer_is_named(model: Path, kind: str) -> None:
    path = model / "vocab.json"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    with pytest.raises(ValueError, match=r"vocab.json: expected a file of a tokenizer"):
        Tokenizer.from_pretrained(model, model_max_length=64)


def test_saving_through_no_link(model: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    target = tmp_path / "target"
    target.mkdir()
    for name in ("tokenizer.model", "tokenizer_config.json", "special_tokens_map.json"):
        (target / name).symlink_to(victim)
    saved(Tokenizer.from_pretrained(model, model_max_length=64), target)
    assert victim.read_text() == "mine" and (target / "tokenizer.model").stat().st_size > 1000
