"""_C.TextDecoder against transformers: logits read in any pieces, greedy text, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastsft import _C
from fastsft.model.generation import Continuation
from native_families import CONFIGS
from tiny_models import write_model
from tolerances import assert_close


@pytest.fixture(scope="module", params=CONFIGS)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A decoder and transformers' model of one directory."""
    from transformers import AutoModelForCausalLM

    directory = write_model(tmp_path_factory.mktemp("model"), request.param)
    decoder = _C.TextDecoder((directory / "config.json").read_text())
    assert decoder.load(str(directory)) == []
    return decoder, AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").eval()


def logits_of(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return result


@pytest.mark.parametrize("pieces", [[1] * 14, [14], [5, 1, 1, 7], [1, 12, 1]])
def test_logits_in_pieces(models: tuple[Any, Any], pieces: list[int]) -> None:
    decoder, model = models
    ids = torch.randint(0, 70, (14,)).tolist()
    expected = logits_of(model, ids)
    decoder.truncate(0)
    for size in pieces:
        got = decoder.read(np.array(ids[decoder.length : decoder.length + size]))
        assert_close(got, expected[decoder.length - 1], "model")
    decoder.truncate(3)
    assert_close(decoder.read(np.array(ids[3:5])), expected[4], "model")


def test_more_tokens_than_a_piece_and_a_cache_have(models: tuple[Any, Any]) -> None:
    decoder, model = models
    ids = torch.randint(0, 70, (1100,)).tolist()
    expected = logits_of(model, ids)
    decoder.truncate(0)
    assert_close(decoder.read(np.array(ids[:600])), expected[599], "model")
    assert_close(decoder.read(np.array(ids[600:])), expected[1099], "model")


@pytest.mark.variants("[tied]")
def test_greedy_texts(models: tuple[Any, Any]) -> None:
    """Twenty prompts; some begin as the one before, whose tokens are kept."""
    decoder, model = models
    continuation, prompt = Continuation(decoder), [1]
    for number in range(20):
        prompt = prompt[: 1 + number % 5] + torch.randint(2, 70, (1 + number % 7,)).tolist()
        with torch.no_grad():
            whole = model.generate(
                torch.tensor([prompt]), max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0
            )
        got = list(continuation.tokens(prompt, max_new_tokens=8))
        assert got == whole[0, len(prompt) :].tolist(), number


def test_bfloat16(tmp_path: Path) -> None:
    directory = write_model(tmp_path, "untied", dtype="bfloat16")
    config = (directory / "config.json").read_text()
    wide, narrow = _C.TextDecoder(config), _C.TextDecoder(config, dtype="bfloat16")
    wide.load(str(directory))
    narrow.load(str(directory))
    got, expected = (decoder.read(np.array([1, 5, 9])) for decoder in (narrow, wide))
    assert got.dtype == torch.float32
    assert (got - expected).norm() / expected.norm() < 3e-2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda decoder: decoder.read(np.array([], dtype=np.int64)), "at least one token"),
        (lambda decoder: decoder.read(np.array([70])), "token 70 is not in a vocabulary of 70"),
        (lambda decoder: decoder.read(np.array([-1])), "token -1 is not in a vocabulary of 70"),
        (lambda decoder: decoder.truncate(1 << 40), "expected a length from 0 to"),
        (lambda decoder: decoder.truncate(-1), "expected a length from 0 to"),
    ],
)
def test_what_cannot_be_read(models: tuple[Any, Any], call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(models[0])


def test_weights_that_are_missing_are_named(tmp_path: Path) -> None:
    directory = write_model(tmp_path, "untied")
    config = (
        (directory / "config.json").read_text().replace('"num_hidden_layers": 3', '"num_hidden_layers": 4')
    )
    with pytest.raises(ValueError, match=r"tensors missing: 9 \(model\.layers\.3"):
        _C.TextDecoder(config).load(str(directory))
