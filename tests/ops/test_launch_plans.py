"""What CUDA launches decide on the host: rows over threads, chunks of logits, which attention kernel runs."""

from __future__ import annotations

import pytest
import torch

from fastsft import _C  # noqa: F401  registers torch.ops.fastsft

SHARED_MEMORY = 99 << 10  # bytes of one block that every GPU since 8.0 grants
MIB = 1 << 20
PLANS = torch.ops.fastsft


@pytest.mark.parametrize("width", [1, 4, 8])
@pytest.mark.parametrize("columns", [1, 7, 64, 128, 257, 1024, 4096, 5120, 8192, 16384, 32768])
def test_a_planned_row_is_covered_once(columns: int, width: int) -> None:
    threads, rows, packs = PLANS.plan_row(columns, width)
    accesses = -(-columns // width)
    assert threads % 32 == 0 and 32 <= threads <= 1024
    assert rows == 1 or threads == 32, "several rows a block only when a row is one warp"
    assert rows * threads <= 1024
    if packs == 0:
        assert accesses > 4 * 1024, "only a row past the registers of a block is left to the wide kernel"
    else:
        assert packs in (2, 4) and packs * threads >= accesses
        assert threads == 32 or (packs // 2) * (threads - 32) < accesses, "no idle warp that could be spared"


@pytest.mark.parametrize(
    "columns,size,alignment,expected",
    [(4096, 2, 16, 8), (4096, 4, 256, 4), (4095, 2, 16, 1), (12, 2, 16, 1), (12, 4, 16, 4), (4096, 2, 8, 1)],
)
def test_sixteen_byte_accesses_need_alignment(columns: int, size: int, alignment: int, expected: int) -> None:
    assert PLANS.plan_access(columns, size, alignment) == expected


@pytest.mark.parametrize("tokens", [1, 127, 128, 5000, 16384, 100_003])
@pytest.mark.parametrize("vocab", [2, 33, 32000, 128256, 151936])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_chunks_of_logits(tokens: int, vocab: int, itemsize: int) -> None:
    rows, stride = PLANS.plan_logits(tokens, vocab, itemsize)
    assert vocab <= stride < vocab + 8 and stride % 8 == 0, "rows begin at 16-byte addresses in bfloat16"
    assert 1 <= rows <= tokens
    assert rows == tokens or rows % 128 == 0, "only the last chunk has rows that are no whole tile"
    row = stride * itemsize
    assert rows * row <= 512 * MIB + 128 * row or rows <= 384, "memory is bounded"
    chunks = -(-tokens // rows)
    assert chunks == 1 or tokens - (chunks - 1) * rows > rows - 128 * chunks, "chunks are nearly equal"


def test_flash_takes_what_it_can() -> None:
    def flash(**changes: object) -> bool:
        usual = {"narrow": True, "head_dim": 128, "alignment": 16, "capability": 9}
        return PLANS.plan_flash(**{**usual, **changes})

    assert flash() and flash(head_dim=64) and flash(head_dim=256) and flash(capability=8)
    assert not flash(narrow=False)
    assert not flash(head_dim=100) and not flash(head_dim=264)
    assert not flash(alignment=8)
    assert not flash(capability=7)


@pytest.mark.parametrize("head_dim", [1, 64, 65, 128, 129, 256])
def test_tiles_fit_shared_memory(head_dim: int) -> None:
    padded, rows = PLANS.plan_tiles(head_dim)
    assert padded >= head_dim and padded in (64, 128, 256)
    backward = 4 * rows * (padded + 1) + 2 * rows * (rows + 1)
    assert 4 * backward <= SHARED_MEMORY
