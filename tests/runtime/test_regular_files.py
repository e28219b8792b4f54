"""What is read whole is first checked to be a regular file of a bounded size; nothing is waited for."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from fastsft import _C
from fastsft.model import config as model_config
from fastsft.model.weights import pickled_files
from fastsft.runtime.regular_files import read_json, read_json_object, read_regular, read_text
from fastsft.tokenizer import Tokenizer
from fastsft.tokenizer.files import read_chat_template
from fastsft.tokenizer.settings import read_settings
from planted import KINDS, plant

LEAVES = "is a link that leaves the directory, to /dev/zero"


def got(kind: str, text: str) -> str:
    """What is said of a file of a model directory: the way to a device is a link, which is refused first."""
    return LEAVES if kind == "a device" else f"{text}, got {kind}"


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_regular_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    path = plant(tmp_path / "x", kind)
    with pytest.raises(ValueError, match=f"x: expected a chat template, got {kind}"):
        read_regular(path, what="a chat template")
    with pytest.raises(ValueError, match=f"x: expected a regular file, got {kind}"):
        _C.SafetensorsReader(str(path))


def test_a_socket_and_a_missing_file_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("s")
        with pytest.raises(ValueError, match="s: expected a regular file"):
            read_regular("s")
    with pytest.raises(ValueError, match="absent: expected a regular file, cannot be read: No such file"):
        read_regular(tmp_path / "absent")


def test_the_size_is_looked_at_before_anything_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match=f"of at most 1000 bytes, got {1 << 40}"):
        read_regular(path, 1000)
    path.write_bytes(b"x" * 1000)
    assert read_regular(path, 1000) == b"x" * 1000
    link = tmp_path / "link"
    link.symlink_to(path)  # as the cache of Hugging Face has them
    assert read_regular(link, 1000) == b"x" * 1000


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "not JSON"),
        (b"[" * 200_000, "nested too deep"),
        (b'{"a": "\xff"}', "in UTF-8: invalid start byte at byte 7"),
        (b'{"a": {"b": ["\\ud800"]}}', r"x: a: b\[0\]: expected a text, got a lone surrogate"),
        (b"[1]", "expected a JSON object, got list"),
    ],
)
def test_json_that_is_none_is_one_line(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=reason) as caught:
        read_json_object(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_pair_of_surrogates_is_a_text(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text('{"a": "\\ud83d\\ude00"}')
    assert read_json(path) == {"a": "\U0001f600"}


def test_newlines_are_those_of_text_mode(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"a\r\nb\rc\n")
    assert read_text(path) == path.read_text("utf-8") == "a\nb\nc\n"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"]
)
def test_files_of_a_tokenizer(name: str, kind: str, tmp_path: Path) -> None:
    plant(tmp_path / name, kind)
    with pytest.raises(ValueError, match=got(kind, f"{name}: expected .*")):
        read_settings(tmp_path)
        read_chat_template(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["tokenizer.model", "tokenizer.json"])
def test_vocabularies(name: str, kind: str, tmp_path: Path) -> None:
    path = plant(tmp_path / name, kind)
    read: Any = _C.load_tokenizer if name.endswith("model") else None
    with pytest.raises(ValueError, match=f"{name}: expected a regular file, got {kind}"):
        if read is not None:
            read(str(tmp_path))
        else:
            _C.read_json_tokenizer(str(path), _C.JsonTokenizerSettings())


@pytest.mark.parametrize("kind", KINDS)
def test_generation_config_counts_as_absent(kind: str, tmp_path: Path) -> None:
    plant(tmp_path / "generation_config.json", kind)
    if kind == "a device":
        with pytest.raises(ValueError, match=LEAVES):
            model_config.read_generation_config(tmp_path)
        return
    with pytest.warns(UserWarning, match=f"got {kind}.*not copied"):
        assert model_config.read_generation_config(tmp_path) is None


@pytest.mark.parametrize("kind", KINDS)
def test_the_index_of_pickled_weights(kind: str, tmp_path: Path) -> None:
    plant(tmp_path / "pytorch_model.bin.index.json", kind)
    with pytest.raises(ValueError, match=got(kind, "pytorch_model.bin.index.json: expected a JSON file")):
        list(pickled_files(tmp_path))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["merges.txt", "vocab.json", "additional_chat_templates/tool.jinja"])
def test_what_a_save_copies_is_looked_at_first(name: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    plant(tmp_path / name, kind)
    with pytest.raises(ValueError, match=got(kind, "expected a file of a tokenizer")):
        Tokenizer.from_pretrained(tmp_path)
