"""dropout: what is kept depends on key, stream and column alone."""

from __future__ import annotations

import pytest
import torch

from fastsft import _C  # noqa: F401
from tolerances import assert_close

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def dropped(x: torch.Tensor, keys: torch.Tensor, p: float, seed: int = 3, stream: int = 5) -> torch.Tensor:
    out = torch.full_like(x, torch.nan)
    torch.ops.fastsft.dropout(x, keys, p, seed, stream, out, 0.0)
    return out


def keys_of(tokens: int) -> torch.Tensor:
    return torch.arange(tokens, dtype=torch.int32) * 7919 - 100


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [0.0, 0.05, 0.5, 0.9])
def test_what_is_kept_is_scaled(dtype: torch.dtype, p: float) -> None:
    x = torch.randn(400, 331).abs().add(0.1).to(dtype)
    out = dropped(x, keys_of(400), p)
    kept = out != 0
    assert kept.double().mean().item() == pytest.approx(1 - p, abs=0.01)
    assert_close(out, x / (1 - p) * kept)
    held = torch.randn(400, 331).to(dtype)
    added = held.clone()
    torch.ops.fastsft.dropout(x, keys_of(400), p, 3, 5, added, 1.0)
    assert_close(added, (held.float() + out.float()).to(dtype))


def test_the_mask_is_of_key_stream_and_column() -> None:
    x, keys = torch.ones(50, 70), keys_of(50)
    mask = dropped(x, keys, 0.5)
    order = torch.randperm(50)
    assert torch.equal(dropped(x, keys[order], 0.5), mask[order])
    assert torch.equal(dropped(x[:, :33].contiguous(), keys, 0.5), mask[:, :33])
    for other in (dropped(x, keys, 0.5, seed=4), dropped(x, keys, 0.5, stream=6), dropped(x, keys + 1, 0.5)):
        assert 0.4 < (other == mask).double().mean() < 0.6


def test_arguments_are_checked() -> None:
    x = torch.ones(3, 4)
    with pytest.raises(ValueError, match=r"keys has shape \[2\], expected \[3\]"):
        dropped(x, keys_of(2), 0.5)
    with pytest.raises(ValueError, match="p is 1"):
        dropped(x, keys_of(3), 1.0)
    with pytest.raises(ValueError, match="keys is Long, expected Int"):
        dropped(x, keys_of(3).long(), 0.5)
