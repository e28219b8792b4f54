"""Estimates a generic engine model's activation memory from its configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from fastsft import _C

# A block's activations per token, in multiples of the hidden and the inner size: GEMM inputs, norms,
# residuals and gradients.
_HIDDEN_OF_BLOCK, _INNER_OF_BLOCK = 16, 4
_SCORES = 2  # matrices of scores and probabilities, which attention keeps without a fused kernel
KEEPS_ALL = ("none", "selective")  # recompute policies with which a block keeps its activations


@dataclass(frozen=True)
class ActivationSizes:
    """Sizes that determine a micro-batch's memory.

    layout: the engine's units, for the optimizer state's memory.
    hidden, inner, heads: a block's sizes.
    blocks: block count.
    vocab: embedding rows.
    outside: elements in unit 0, which has all parameters outside the blocks.
    itemsize: bytes per element.
    summed: elements of a block's expert weights to which peft adds adapters.
    """

    layout: _C.GenericModel
    hidden: int
    inner: int
    heads: int
    blocks: int
    vocab: int
    outside: int
    itemsize: int
    summed: int = 0

    @classmethod
    def of(
        cls, layout: _C.GenericModel, config: PretrainedConfig, blocks: int, outside: int, itemsize: int
    ) -> ActivationSizes:
        """Read the sizes from transformers' configuration."""
        hidden = int(config.hidden_size)
        inner = max(
            _number(config, "intermediate_size"), _number(config, "ffn_dim"), _number(config, "n_inner")
        )
        heads = max(_number(config, "num_attention_heads"), 1)
        inner = inner or 4 * hidden
        return cls(layout, hidden, inner, heads, blocks, int(config.vocab_size), outside, itemsize)

    def whole_bytes(self) -> int:
        """Return unit 0's size, which stays gathered throughout a micro-batch, in bytes."""
        return self.outside * self.itemsize

    def parts(self, recompute: str, tokens: int, labels: int, longest: int) -> dict[str, int]:
        """Return a micro-batch's memory in bytes, by kind. All rows count as `longest` tokens long."""
        block = tokens * (_HIDDEN_OF_BLOCK * self.hidden + _INNER_OF_BLOCK * self.inner) * self.itemsize
        block += _SCORES * self.heads * tokens * longest * self.itemsize
        inputs = self.blocks * tokens * self.hidden * self.itemsize
        kept = self.blocks if recompute in KEEPS_ALL else 1
        return {
            "activations": inputs + kept * block + (kept + bool(self.summed)) * self.summed * self.itemsize,
            "labelled tokens": 2 * labels * self.hidden * self.itemsize,
            "logits": 2 * 4 * labels * self.vocab,
        }


def _number(config: PretrainedConfig, name: str) -> int:
    value = getattr(config, name, None)
    return value if isinstance(value, int) else 0
