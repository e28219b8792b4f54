"""Generation over a scripted reader: what is chosen, where it stops, what is read again, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from fastsft.model.family import tell_ignored_cap
from fastsft.model.generation import Continuation, Sampling
from fastsft.runtime.messages import collected


class CountingReader:
    """The most likely token is always the last one plus one; the one after it is a little less likely."""

    def __init__(self) -> None:
        self.read_ids: list[int] = []
        self.sizes: list[int] = []

    def truncate(self, length: int) -> None:
        assert length <= len(self.read_ids)
        self.read_ids = self.read_ids[:length]

    def read(self, ids: np.ndarray) -> torch.Tensor:
        assert ids.dtype == np.int64 and len(ids) > 0
        self.sizes.append(len(ids))
        self.read_ids += ids.tolist()
        result = torch.zeros(10)
        result[(ids[-1] + 1) % 10] = 3.0
        result[(ids[-1] + 2) % 10] = 2.0
        return result


def new_tokens(prompt: list[int], **options: object) -> list[int]:
    return list(Continuation(CountingReader()).tokens(prompt, **options))  # type: ignore[arg-type]


def test_greedy_takes_the_most_likely_and_reads_each_token_once() -> None:
    reader = CountingReader()
    assert list(Continuation(reader).tokens([1, 2], max_new_tokens=3)) == [3, 4, 5]
    assert reader.sizes == [2, 1, 1] and reader.read_ids == [1, 2, 3, 4]


def test_what_two_prompts_share_is_read_once() -> None:
    reader = CountingReader()
    continuation = Continuation(reader)
    assert list(continuation.tokens([1, 2], max_new_tokens=2)) == [3, 4]
    assert list(continuation.tokens([1, 2, 3, 9], max_new_tokens=1)) == [0]
    assert reader.sizes == [2, 1, 1] and reader.read_ids == [1, 2, 3, 9]
    assert list(continuation.tokens([1, 2, 3, 9], max_new_tokens=1)) == [0]  # its last token is read again
    assert list(continuation.tokens([5], max_new_tokens=1)) == [6] and reader.read_ids == [5]


def test_stop_token_ends_the_reply_and_is_not_in_it() -> None:
    assert new_tokens([2], max_new_tokens=50, stop={5}) == [3, 4]
    assert new_tokens([4], stop={5}) == []


def test_temperature_draws_from_the_softmax_and_the_seed_decides() -> None:
    warm = Sampling(temperature=1.0)
    draws = [new_tokens([1], max_new_tokens=1, sampling=warm, seed=seed)[0] for seed in range(400)]
    expected = torch.tensor([0.0] * 2 + [3.0, 2.0] + [0.0] * 6).softmax(0)[2].item()
    assert draws.count(2) / 400 == pytest.approx(expected, abs=0.1)
    hot = Sampling(temperature=2.0)
    again = [new_tokens([1], max_new_tokens=20, sampling=hot, seed=7) for _ in range(2)]
    assert again[0] == again[1]


def test_nearly_zero_temperature_is_greedy() -> None:
    assert new_tokens([1], max_new_tokens=4, sampling=Sampling(temperature=1e-3)) == [2, 3, 4, 5]
    assert new_tokens([1], max_new_tokens=4, sampling=Sampling(temperature=1e-40)) == [2, 3, 4, 5]


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.8, 0.95, 1.0])
def test_top_p_draws_from_the_tokens_that_transformers_keeps(top_p: float) -> None:
    from transformers import TopPLogitsWarper

    logits = torch.randn(12)
    kept = TopPLogitsWarper(top_p)(torch.zeros(1, 1), logits.clone().unsqueeze(0)).softmax(-1)[0]
    sampling, generator = Sampling(temperature=1.0, top_p=top_p), torch.Generator().manual_seed(0)
    drawn = torch.tensor([sampling.choose(logits, generator) for _ in range(4000)])
    shares = torch.bincount(drawn, minlength=12) / 4000
    assert shares[kept == 0].sum() == 0 and (shares - kept).abs().max() < 0.04


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a prompt"):
        new_tokens([])
    with pytest.raises(ValueError, match=r"temperature: expected at least 0, got -0\.5"):
        Sampling(temperature=-0.5)
    with pytest.raises(ValueError, match="logits are not finite"):
        Sampling().choose(torch.tensor([0.0, torch.nan]), torch.Generator())
    with pytest.raises(ValueError, match="top_p: expected above 0 and at most 1, got 0"):
        Sampling(top_p=0)


@pytest.mark.parametrize(("trains", "count"), [(True, 1), (False, 0)])
def test_who_chats_is_not_told_how_to_train(trains: bool, count: int) -> None:
    with collected() as notices:
        tell_ignored_cap({"model_type": "gemma2"}, "sdpa", trains=trains)
    (line,) = notices.warned
    assert "attn_logit_softcapping is left out" in line and line.count("given to the Trainer") == count


def test_the_line_about_the_bound_says_what_the_installed_transformers_does() -> None:
    """By a small Gemma 2 of its own: whether a lower bound changes its logits with the default attention."""
    config = transformers.Gemma2Config(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, attn_logit_softcapping=0.01, initializer_range=1.0,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    ids = torch.arange(1, 9)[None]
    bounded = model(ids).logits
    for layer in model.model.layers:
        layer.self_attn.attn_logit_softcapping = None
    has_bound = not torch.equal(bounded, model(ids).logits)
    with collected() as notices:
        tell_ignored_cap({"model_type": "gemma2"}, "sdpa")
    (line,) = notices.warned
    assert (
        f"transformers {transformers.__version__}, which is installed, computes with it" in line
    ) == has_bound
    assert ("--engine generic trains with it" in line) == has_bound
