"""Data sheets of GPUs by their usual names, and what a card cannot compute."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fastsft.cli import plan
from fastsft.planning.gpus import GPUS, cannot_run, gpu_named

CONFIGS = Path(__file__).parents[2] / "benchmarks" / "configs"
# Of NVIDIA's data sheets: GB, GB/s, TFLOP/s in 16 bits without sparsity and with float32 sums; and of its
# list of CUDA GPUs: compute capability.
SHEETS = {
    "T4": (16, 320, 65, 7.5), "V100": (16, 900, 125, 7.0), "RTX 3090": (24, 936, 71, 8.6),
    "RTX 4090": (24, 1008, 165, 8.9), "RTX 5090": (32, 1792, 209.5, 12.0), "L4": (24, 300, 121, 8.9),
    "L40S": (48, 864, 362, 8.9), "A10": (24, 600, 125, 8.6), "A100-40GB": (40, 1555, 312, 8.0),
    "A100": (80, 2039, 312, 8.0), "H100": (80, 3350, 989, 9.0), "H200": (141, 4800, 989, 9.0),
    "B200": (192, 8000, 2250, 10.0),
}  # fmt: skip


@pytest.mark.parametrize("name", SHEETS)
def test_a_sheet_has_the_published_figures(name: str) -> None:
    gpu = gpu_named(name)
    memory, bandwidth, tera, capability = SHEETS[name]
    assert gpu is not None and gpu.name == name
    assert 0.9 * memory * 1e9 < gpu.memory <= memory * 2**30
    assert gpu.bandwidth == pytest.approx(bandwidth * 1e9, rel=0.03)
    assert gpu.flops == pytest.approx(tera * 1e12, rel=0.01)
    assert gpu.capability == divmod(round(capability * 10), 10)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("rtx4090", "RTX 4090"), ("4090", "RTX 4090"), ("RTX_4090", "RTX 4090"), ("RTX-3090", "RTX 3090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"), ("a100-40gb", "A100-40GB"), ("A100 40 GB", "A100-40GB"),
        ("a100_40g", "A100-40GB"), ("NVIDIA A100-SXM4-40GB", "A100-40GB"), ("a100-80gb", "A100"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"), ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe"), ("Tesla T4", "T4"), ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("v100", "V100"), ("l40s", "L40S"), ("NVIDIA L40", "L40"), ("NVIDIA A10", "A10"), ("A10G", "A10G"),
        ("h100 sxm", "H100"), ("H100-PCIe", "H100 PCIe"), ("NVIDIA H200 NVL", "H200 NVL"), ("b200", "B200"),
        ("NVIDIA GB200", "GB200"), ("NVIDIA RTX A6000", "RTX A6000"), ("NVIDIA GH200 480GB", "GH200 480GB"),
        ("a100-40", "A100-40GB"), ("V100-32", "V100-32GB"), ("A100 80", "A100"), ("A10G 24GB", "A10G"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
    ],
)  # fmt: skip
def test_usual_spellings(spelling: str, name: str) -> None:
    gpu = gpu_named(spelling)
    assert gpu is not None and gpu.name == name


@pytest.mark.parametrize(
    "other",
    [
        "NVIDIA RTX A1000", "NVIDIA T400 4GB", "NVIDIA T4G", "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "Tesla V100S-PCIE-32GB", "NVIDIA RTX 4000 Ada Generation",
        "GTX 1080", "NVIDIA A2", "", "NVIDIA GeForce RTX 4090 D", "RTX 3090 Ti", "GRID A40-8Q",
    ],
)  # fmt: skip
def test_another_chip_has_no_sheet(other: str) -> None:
    """A name that only contains that of a card in the table."""
    assert gpu_named(other) is None


def test_each_name_finds_its_own_sheet() -> None:
    assert [gpu_named(gpu.name) for gpu in GPUS] == list(GPUS)


@pytest.mark.parametrize("name", ["A10G", "NVIDIA A10G", "NVIDIA GH200 480GB"])
def test_a_size_that_is_not_the_memory_is_no_contradiction(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", str(CONFIGS / "qwen2.5-0.5b.json"), "--bf16", "--lora", "True"]
    assert plan.main([*words, "--gpu", name]) == 0, capsys.readouterr().err


def test_what_a_card_lacks() -> None:
    """Turing and Volta have no bfloat16, FlashAttention-2 begins at 8.0, and nvcc 13 at 7.5."""
    t4, v100, ada = gpu_named("T4"), gpu_named("V100"), gpu_named("4090")
    assert t4 and v100 and ada
    assert "--fp16 True instead of --bf16 True" in str(cannot_run(t4, "bfloat16", 64))
    assert cannot_run(t4, "float16", 64) is None and cannot_run(t4, "float32", 64) is None
    assert "no kernels for it" in str(cannot_run(v100, "float16", 64))
    for size in (64, 96, 128, 256):
        assert cannot_run(ada, "bfloat16", size) is None


def test_attention_on_turing() -> None:
    """Our kernels' tiles against the 64 KiB that a block of compute capability 7.5 may take.

    Four tiles of rows and two of scores, each row with a float of padding, in the backward pass of keys.
    """
    t4 = gpu_named("T4")
    assert t4
    for size in (32, 64, 80, 128, 256):
        padded, rows = torch.ops.fastsft.plan_tiles(size)
        floats = 4 * rows * (padded + 1) + 2 * rows * (rows + 1)
        assert (cannot_run(t4, "float16", size) is None) == (4 * floats <= 64 * 1024)
    assert "heads of 128" in str(cannot_run(t4, "float16", 128))


def test_plan_says_what_a_card_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", str(CONFIGS / "qwen2.5-0.5b.json"), "--gpu"]
    assert plan.main([*words, "T4", "--bf16"]) == 1
    assert "T4 (compute capability 7.5) computes no bfloat16" in capsys.readouterr().err
    assert plan.main([*words, "T4", "--fp16"]) == 0
    text = capsys.readouterr().out
    assert "of 11.7 GiB" in text and "no prediction of speed: it does not know the rate" in text
    assert "FASTSFT_CUDA_ARCHITECTURES=75" in text
    assert plan.main([*words, "V100", "--fp16"]) == 1
    assert "no kernels" in capsys.readouterr().err
    assert plan.main([*words, "RTX 4090 48GB", "--bf16"]) == 1
    assert "expected a RTX 4090 of 23.5 GiB" in capsys.readouterr().err
    assert plan.main([*words, "RTX 4090 48GB", "--bf16", "--memory", "48GiB"]) == 0
    assert plan.main(["--model", str(CONFIGS / "vicuna-7b.json"), "--gpu", "t4", "--fp16"]) == 1
    assert "heads of at most 64" in capsys.readouterr().err


def test_cudnn_attention_counts_where_it_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    """On an Ada GPU cuDNN is not taken: the prediction is that of FlashAttention-2."""
    words = ["--model", str(CONFIGS / "qwen2.5-0.5b.json"), "--bf16", "--json", "--gpu"]
    speeds = {}
    for gpu in ("4090", "H100"):
        for kernel in ("flash2", "cudnn"):
            assert plan.main([*words, gpu, "--attention_kernel", kernel, "--micro_batch_tokens", "4096"]) == 0
            speeds[gpu, kernel] = json.loads(capsys.readouterr().out)["predicted"]["tokens_per_second"]
    assert speeds["4090", "flash2"] == pytest.approx(speeds["4090", "cudnn"], rel=1e-9)
    assert speeds["H100", "cudnn"] > speeds["H100", "flash2"]
