"""Damaged vocabularies, and those that would not be reproduced exactly, are refused with a reason."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastsft.tokenizer import Tokenizer
from golden_text import GOLDEN

SOURCE = GOLDEN / "tokenizers" / "llama2_legacy"


def write_model(folder: Path, data: bytes) -> Path:
    shutil.copytree(SOURCE, folder)
    (folder / "tokenizer.model").write_bytes(data)
    return folder


def edited_model(edit: Callable[[Any], None]) -> bytes:
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString((SOURCE / "tokenizer.model").read_bytes())
    edit(model)
    return model.SerializeToString()


def unigram(model: Any) -> None:
    model.trainer_spec.model_type = 1


def normalised(model: Any) -> None:
    model.normalizer_spec.precompiled_charsmap = b"abc"


def removes_spaces(model: Any) -> None:
    model.normalizer_spec.remove_extra_whitespaces = True


def user_defined(model: Any) -> None:
    model.pieces[500].type = 4


def twice(model: Any) -> None:
    model.pieces[500].piece = model.pieces[501].piece


def nan_score(model: Any) -> None:
    model.pieces[500].score = float("nan")


def huge_piece(model: Any) -> None:
    model.pieces[500].piece = "ab" * 20_000


def long_pieces(model: Any) -> None:
    for number, piece in enumerate(model.pieces[500:20_500]):
        piece.piece = f"{number:x}" + "a" * 1000


def no_space_mark(model: Any) -> None:
    next(piece for piece in model.pieces if piece.piece == "▁").piece = "qqqq"


def no_byte_fallback(model: Any) -> None:
    model.trainer_spec.byte_fallback = False


def missing_byte(model: Any) -> None:
    model.pieces[10].type = 1


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (unigram, "expected a BPE model"),
        (normalised, "normalises characters"),
        (removes_spaces, "removes extra spaces"),
        (user_defined, "user-defined or unused"),
        (twice, "appears twice"),
        (nan_score, "NaN"),
        (huge_piece, "too long"),
        (long_pieces, "too long"),
        (no_space_mark, r"U\+2581"),
        (missing_byte, "byte 7 has no piece"),
        (no_byte_fallback, "of type byte although byte_fallback is off"),
    ],
)
def test_unsupported_vocabulary(edit: Callable[[Any], None], reason: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "t", edited_model(edit))
    with pytest.raises(ValueError, match=reason):
        Tokenizer.from_pretrained(folder)


def test_too_many_pieces(tmp_path: Path) -> None:
    piece = b"\x0a\x05\x0a\x03\xe4\xb8\x80"  # field 1 of 5 bytes: a piece whose field 1 is one character
    folder = write_model(tmp_path / "t", piece * ((1 << 20) + 1))
    with pytest.raises(ValueError, match="more than 1048576 pieces"):
        Tokenizer.from_pretrained(folder)


@pytest.mark.parametrize("size", [1, 2, 17, 1000, 400_000])
def test_cut_off_file(size: int, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "t", (SOURCE / "tokenizer.model").read_bytes()[:size])
    with pytest.raises(ValueError, match=r"tokenizer\.model"):
        Tokenizer.from_pretrained(folder)


def test_random_damage_is_refused_or_harmless(tmp_path: Path) -> None:
    folder, original = write_model(tmp_path / "t", b""), (SOURCE / "tokenizer.model").read_bytes()
    draw = random.Random(5)
    for _ in range(40):
        data = bytearray(original)
        for _ in range(draw.randint(1, 8)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        (folder / "tokenizer.model").write_bytes(data)
        try:
            tokenizer = Tokenizer.from_pretrained(folder)
        except ValueError as error:
            assert "tokenizer.model" in str(error) or "special token" in str(error)
        else:
            assert all(0 <= i < len(tokenizer) for i in tokenizer.encode("Hello 你好 </s> \x00"))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"added_tokens_decoder": {"x": {"content": "<x>"}}}, "expected a token id"),
        ({"added_tokens_decoder": {"32000": {"content": "<x>", "single_word": True}}}, "single_word"),
        ({"added_tokens_decoder": {"5": {"content": "Hello"}}}, "another"),
        ({"legacy": "yes"}, "expected true or false"),
        ({"padding_side": "middle"}, "padding_side"),
    ],
)
def test_bad_settings(config: dict[str, Any], reason: str, tmp_path: Path) -> None:
    shutil.copytree(SOURCE, tmp_path / "t")
    path = tmp_path / "t" / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    with pytest.raises(ValueError, match=reason):
        Tokenizer.from_pretrained(tmp_path / "t")


def test_missing_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read"):
        Tokenizer.from_pretrained(tmp_path)


def test_lone_surrogate_in_a_text() -> None:
    with pytest.raises(ValueError, match="surrogate"):
        Tokenizer.from_pretrained(SOURCE).encode("a\ud800")
