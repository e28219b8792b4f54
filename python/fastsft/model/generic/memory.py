"""Bytes of a generic model's activations, estimated from its configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from fastsft import _C

# Of a block, in hidden and inner sizes a token: inputs of products, norms, residuals and their gradients.
_HIDDEN_OF_BLOCK, _INNER_OF_BLOCK = 16, 4
# Weights of attention are kept where no fused kernel runs: a matrix for scores, one for weights.
_SCORES = 2
KEEPS_ALL = ("none", "selective")  # recompute policies with which a block keeps what backward needs


@dataclass(frozen=True)
class ActivationSizes:
    """Sizes that a micro-batch's bytes depend on.

    layout: _C.GenericModel, for the state. summed: elements of a block's experts that peft adds adapters to.
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
        """config: of transformers. outside: elements of what belongs to no block."""
        hidden = int(config.hidden_size)
        inner = max(
            _number(config, "intermediate_size"), _number(config, "ffn_dim"), _number(config, "n_inner")
        )
        heads = max(_number(config, "num_attention_heads"), 1)
        inner = inner or 4 * hidden
        return cls(layout, hidden, inner, heads, blocks, int(config.vocab_size), outside, itemsize)

    def whole_bytes(self) -> int:
        """Of the unit that stays whole throughout a micro-batch, in the compute dtype."""
        return self.outside * self.itemsize

    def parts(self, recompute: str, tokens: int, labels: int, longest: int) -> dict[str, int]:
        """Of a micro-batch whose rows are as long as the longest."""
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
