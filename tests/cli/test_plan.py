"""`fastsft plan`: a table without training, and a refusal that says what to change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastsft.cli import plan
from fastsft.cli.random_model import small_config

GIB = 2**30


@pytest.fixture
def vicuna(tmp_path: Path) -> str:
    """Sizes of a 7B model; no weights."""
    config = small_config(
        vocab_size=32000, hidden_size=4096, num_layers=32, num_heads=32, intermediate_size=11008
    )
    (tmp_path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    return str(tmp_path)


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, int]:
    assert plan.main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_table(vicuna: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main(["--model", vicuna, "--world_size", "4", "--fsdp", "full_shard", "--memory", "80GiB",
                      "--bf16"]) == 0  # fmt: skip
    text = capsys.readouterr().out
    for part in ("full_shard on 4 ranks, bfloat16, cuda", "optimizer", "a rank at most", "of 72.0 GiB"):
        assert part in text


def test_bytes_a_parameter(vicuna: str, capsys: pytest.CaptureFixture[str]) -> None:
    """performance.md, 3.3: 113.0 GiB for 7B in bf16 with fp32 master, moments and gradients (18 bytes)."""
    result = planned(capsys, "--model", vicuna, "--bf16", "--memory", "1000GiB", "--device", "cuda")
    state = sum(result["parts"][name] for name in ("parameters", "gradients", "optimizer"))
    assert state / GIB == pytest.approx(113.0, abs=0.1)


@pytest.mark.parametrize(("recompute", "gib"), [("none", 64), ("selective", 45.5), ("block", 4)])
def test_activations_of_16k_tokens(
    vicuna: str, capsys: pytest.CaptureFixture[str], recompute: str, gib: float
) -> None:
    """The same section's table; buffers shared by layers come on top (below 2 GiB)."""
    result = planned(
        capsys, "--model", vicuna, "--bf16", "--memory", "1000GiB", "--device", "cuda",
        "--micro_batch_tokens", "16384", "--recompute", recompute,
    )  # fmt: skip
    assert gib - 1 <= result["parts"]["activations"] / GIB <= gib + 2.5


def test_refusal(vicuna: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main(["--model", vicuna, "--bf16", "--memory", "80GiB"]) == 1
    error = capsys.readouterr().err
    assert "does not fit" in error and "2 ranks with --fsdp full_shard" in error


def test_bad_words(vicuna: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main(["--model", vicuna, "--memory", "a lot"]) == 1
    assert '--memory: expected a size like "80GiB", got "a lot"' in capsys.readouterr().err
    assert plan.main(["--model", vicuna, "--world_size", "0"]) == 1
    assert "--world_size: expected at least 1" in capsys.readouterr().err
