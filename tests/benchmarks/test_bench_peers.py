"""bench_peers.py with a tiny model on the CPU: both sides run, agree, and the record says what they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import bench_peers
from harness import UnequalResultsError

pytest.importorskip("transformers", reason="the peers are in the extra [bench]")
pytest.importorskip("accelerate", reason="the peers are in the extra [bench]")


@pytest.mark.thorough
def test_fastchats_recipe_and_ours_compute_the_same(tmp_path: Path) -> None:
    flags = (
        "--device cpu --model tiny --rows 4 --micro_batch 2 --micro_batch_tokens 100 --steps 2 --warm_up 1"
        " --pairs 1 --longest 64 --bf16 False --threads 1"
    )
    bench_peers.main([*flags.split(), "--peers", "fastchat", "--results", str(tmp_path)])
    record = json.loads((tmp_path / "peers_tiny_W2_fastchat.json").read_text())
    assert set(record["ratios"]) == {"tokens_per_second", "mfu_of_989_tflops", "peak_memory_bytes"}
    for side in ("fastchat", "fastsft"):
        kept = record["settings"]["sides"][side]
        assert kept["dtypes"]["master"] == "float32" and len(kept["seconds"]) == 2 and kept["versions"]


def test_other_losses_void_the_timing(tmp_path: Path) -> None:
    options = bench_peers.parse(["--device", "cpu", "--bf16", "False", "--rows", "2", "--steps", "3"])
    comparison = bench_peers.Comparison(options, tmp_path)
    with pytest.raises(UnequalResultsError):
        comparison.check([6.0, 6.0, 6.0], [6.0, 6.0, 6.01])


@pytest.mark.parametrize(
    ("model", "gflop"), [("vicuna-7b", 40.4), ("llama-3-8b", 45.8), ("llama-3.2-1b", 7.6), ("qwen3-8b", 46.3)]
)
def test_flops_are_those_of_the_roofline(model: str, gflop: float) -> None:
    """GFLOP a token at 1,024 tokens, by hand: 6 x matrices, and attention counted at half."""
    config = json.loads((bench_peers.HERE / "configs" / f"{model}.json").read_text())
    shapes = {name: list(shape) for name, shape in bench_peers.matrix_shapes(config).items()}
    flops = bench_peers.bench_step.step_flops(config, shapes, [1024]) / 1024
    assert flops / 1e9 == pytest.approx(gflop, abs=0.06)
