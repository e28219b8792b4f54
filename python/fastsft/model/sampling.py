"""Choice of the next token from its logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_COLDEST = 1e-6  # below it the most likely token is taken


@dataclass(frozen=True)
class Sampling:
    """temperature: 0 takes the most likely token, else tokens are drawn from softmax(logits / temperature).

    top_p: of the fewest most likely tokens whose probabilities add up to it. ValueError for a negative
    temperature, or a top_p that is not above 0 and at most 1.
    """

    temperature: float = 0.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature: expected at least 0, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: expected above 0 and at most 1, got {self.top_p}")

    def choose(self, logits: torch.Tensor, generator: torch.Generator) -> int:
        """One token id for float32 logits [V]; of equals the lowest id where nothing is drawn."""
        if not bool(logits.isfinite().all()):
            raise ValueError("the model's logits are not finite: training diverged, or weights are damaged")
        if self.temperature < _COLDEST:
            return int(logits.argmax())
        probabilities = torch.softmax(logits / self.temperature, dim=-1)
        if self.top_p < 1:
            ordered, places = probabilities.sort(descending=True, stable=True)
            before = ordered.cumsum(0) - ordered
            probabilities[places[before >= self.top_p]] = 0
        return int(torch.multinomial(probabilities, 1, generator=generator))
