"""Generation over a scripted engine: what is chosen, where it stops, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastsft.model.generation import generate


class CountingEngine:
    """The most likely token is always the last one plus one; the one after it is a little less likely."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def logits(self, input_ids: np.ndarray, lengths: np.ndarray) -> torch.Tensor:
        assert (input_ids.dtype, lengths.tolist()) == (np.int64, [len(input_ids)])
        self.lengths.append(len(input_ids))
        result = torch.zeros(len(input_ids), 10)
        result[-1, (input_ids[-1] + 1) % 10] = 3.0
        result[-1, (input_ids[-1] + 2) % 10] = 2.0
        return result


def test_greedy_takes_the_most_likely_and_reads_everything() -> None:
    engine = CountingEngine()
    assert generate(engine, [1, 2], max_new_tokens=3) == [3, 4, 5]
    assert engine.lengths == [2, 3, 4]


def test_stop_token_ends_the_reply_and_is_not_in_it() -> None:
    assert generate(CountingEngine(), [2], max_new_tokens=50, stop={5}) == [3, 4]
    assert generate(CountingEngine(), [4], stop={5}) == []


def test_temperature_draws_from_the_softmax_and_the_seed_decides() -> None:
    draws = [
        generate(CountingEngine(), [1], max_new_tokens=1, temperature=1.0, seed=s)[0] for s in range(400)
    ]
    expected = torch.tensor([0.0] * 2 + [3.0, 2.0] + [0.0] * 6).softmax(0)[2].item()
    assert draws.count(2) / 400 == pytest.approx(expected, abs=0.1)
    again = [generate(CountingEngine(), [1], max_new_tokens=20, temperature=2.0, seed=7) for _ in range(2)]
    assert again[0] == again[1]


def test_nearly_zero_temperature_is_greedy() -> None:
    assert generate(CountingEngine(), [1], max_new_tokens=4, temperature=1e-3) == [2, 3, 4, 5]


@pytest.mark.parametrize(("prompt", "temperature"), [([], 0.0), ([1], -0.5)])
def test_what_makes_no_sense_is_refused(prompt: list[int], temperature: float) -> None:
    with pytest.raises(ValueError, match="expected a prompt"):
        generate(CountingEngine(), prompt, temperature=temperature)
