"""`fastsft plan`: a table without training, and a refusal that says what to change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fastsft.cli import plan
from fastsft.cli.demo_model import small_config

GIB = 2**30
CONFIGS = Path(__file__).parents[2] / "benchmarks" / "configs"


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
    for part in (
        "4 ranks, full_shard, bfloat16 over fp32 weights, cuda",
        "optimizer",
        "a rank at most",
        "of 77.0 GiB",
    ):
        assert part in text


STATE = ("parameters", "gradients", "optimizer")


@pytest.mark.parametrize(
    ("model", "gib", "narrow_gib"),
    [("vicuna-7b", 113.0, 100.4), ("llama-3-8b", 134.6, 119.7), ("qwen2.5-7b", 127.7, 113.5),
     ("vicuna-13b", 218, 194)],
)  # fmt: skip
def test_bytes_a_parameter(
    model: str, gib: float, narrow_gib: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """bf16 with fp32 master, moments and gradients takes 18 bytes a parameter, 16 with split masters.

    With bf16 gradients 16, and embedding or head twice whole in fp32: one rank's products write the rest.
    """
    words = ["--model", str(CONFIGS / f"{model}.json"), "--bf16", "--memory", "1000GiB"]
    split = planned(capsys, *words)["parts"]
    words += ["--master_dtype", "float32"]
    wide, narrow = (
        planned(capsys, *words)["parts"],
        planned(capsys, *words, "--grad_dtype", "bfloat16")["parts"],
    )
    assert sum(wide[name] for name in STATE) / GIB == pytest.approx(gib, abs=0.5)
    assert sum(split[name] for name in STATE) * 18 == pytest.approx(
        16 * sum(wide[name] for name in STATE), rel=0.01
    )
    shape = json.loads((CONFIGS / f"{model}.json").read_text())
    buffers = 2 * 4 * shape["vocab_size"] * shape["hidden_size"]
    assert (sum(narrow[name] for name in STATE) - buffers) / GIB == pytest.approx(narrow_gib, abs=0.5)


def test_logits_of_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """As the kernel cuts them: in the compute dtype, and their gradient takes their place."""
    words = [
        "--model",
        str(CONFIGS / "llama-3-8b.json"),
        "--memory",
        "1000GiB",
        "--micro_batch_tokens",
        "16384",
    ]
    for flags, size in (([], 4), (["--bf16"], 2)):
        logits = planned(capsys, *words, *flags)["parts"]["logits"]
        rows, stride = torch.ops.fastsft.plan_logits(16384, 128256, size)
        assert logits == rows * stride * size + 8 * 16384


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


def test_flags_of_training(vicuna: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nodes by the ranks of a machine or by fsdp_config; the optimizer's 12 bytes a parameter on the host.

    Each range of a unit is page-locked, in a power of two: 1/8 of 202.4M and of 131.1M elements of 4 bytes.
    """
    words = ["--model", vicuna, "--world_size", "16", "--bf16", "--master_dtype", "float32"]
    words += ["--memory", "80GiB", "--fsdp"]
    machine = planned(capsys, *words, "hybrid_shard offload", "--local_world_size", "8")
    config = '{"hybrid_shard_size": 8, "cpu_offload": true}'
    assert planned(capsys, *words, "hybrid_shard", "--fsdp_config", config) == machine
    assert machine["host"] / GIB == pytest.approx(3 * (32 / 8 + 2 / 16), rel=0.01)
    narrow = planned(capsys, *words, "full_shard", "--grad_dtype", "bfloat16")
    wide = planned(capsys, *words, "full_shard")
    saved = wide["parts"]["gradients"] - narrow["parts"]["gradients"]
    assert saved / GIB == pytest.approx(2 * 6.738e9 / 16 / GIB, rel=0.01)
    assert plan.main([*words, "hybrid_shard offload", "--local_world_size", "8"]) == 0
    text = capsys.readouterr().out
    for part in ("hybrid_shard in nodes of 8", "optimizer state on the host", "and of the host"):
        assert part in text
    assert plan.main([*words, "full_shard offload", "--host_memory", "50GiB"]) == 1
    assert "of host memory a rank" in capsys.readouterr().err
    assert plan.main([*words, "hybrid_shard", "--local_world_size", "5"]) == 1
    assert "16 ranks do not make nodes of 5 ranks" in capsys.readouterr().err


def test_one_reduction_a_step(vicuna: str, capsys: pytest.CaptureFixture[str]) -> None:
    """7B on 8 GPUs: 25.1 GiB of whole gradients fit into 140 GiB and not into 64 GiB."""
    words = ["--model", vicuna, "--world_size", "8", "--bf16", "--micro_batch_tokens", "8192"]
    words += ["--fsdp", "full_shard", "--micro_batches", "8", "--memory"]
    once = planned(capsys, *words, "140GiB")
    assert once["parts"]["gradients"] == pytest.approx(4 * 6.738e9, rel=0.001)
    assert not once["sync_each_batch"]
    tight = planned(capsys, *words, "64GiB", "--recompute", once["recompute"])
    assert tight["sync_each_batch"] and tight["recompute"] == once["recompute"]
    assert planned(capsys, *words, "140GiB", "--sync_each_batch", "True")["sync_each_batch"]
    assert plan.main([*words, "140GiB", "--gpu", "H200"]) == 0
    assert "gradients reduced once a step" in capsys.readouterr().out
    assert plan.main([*words, "140GiB", "--sync_each_batch", "False", "--grad_dtype", "bfloat16"]) == 1
    assert "--sync_each_batch False keeps gradients whole in float32" in capsys.readouterr().err


def test_adapters(vicuna: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A frozen model of 6.738e9 weights in 2 bytes; rank 16 on the 7 linears: 40.0e6 trained parameters."""
    words = ["--model", vicuna, "--bf16", "--lora", "--lora_r", "16", "--lora_target_modules", "all-linear"]
    parts = planned(capsys, *words, "--memory", "80GiB")["parts"]
    assert parts["parameters"] == pytest.approx(2 * (6.738e9 + 40.0e6), rel=0.001)
    assert parts["optimizer"] == pytest.approx(10 * 40.0e6, rel=0.01)
    assert plan.main([*words, "--memory", "80GiB"]) == 0
    assert "bfloat16 over fp32 weights, adapters on a frozen model" in capsys.readouterr().out
    four_bits = planned(capsys, *words, "--q_lora", "--memory", "80GiB")["parts"]
    # 6.476e9 weights are linears of layers: 33 bytes for 64 of them, 4 for 16,384.
    held = 6.476e9 * (33 / 64 + 4 / 16384) + 2 * (6.738e9 - 6.476e9 + 40.0e6)
    assert four_bits["parameters"] == pytest.approx(held, rel=0.001)
    assert four_bits["optimizer"] == parts["optimizer"]
    assert plan.main([*words, "--q_lora", "True", "--memory", "80GiB"]) == 0
    assert "adapters on a frozen model in 4 bits" in capsys.readouterr().out
    assert planned(capsys, *words, "--q_lora", "False", "--memory", "80GiB")["parts"] == parts
    assert plan.main([*words[:3], "--q_lora", "--memory", "80GiB"]) == 1
    assert "--q_lora: expected with --lora True" in capsys.readouterr().err
    assert plan.main([*words[:3], "--lora_r", "16", "--memory", "80GiB"]) == 1
    assert "--lora_r: expected with --lora True" in capsys.readouterr().err
    assert plan.main([*words[:4], "--lora_target_modules", "w1", "--memory", "80GiB"]) == 1
    assert "w1" in capsys.readouterr().err


def test_a_file_of_any_name(vicuna: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--memory", "1000GiB", "--model"]
    expected = planned(capsys, *words, vicuna)
    (tmp_path / "config.json").rename(tmp_path / "vicuna-7b.json")
    assert planned(capsys, *words, f"{vicuna}/vicuna-7b.json") == expected
    assert plan.main([*words, vicuna]) == 1
    assert "found no config.json" in capsys.readouterr().err


def test_refusal(vicuna: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main(["--model", vicuna, "--bf16", "--memory", "80GiB"]) == 1
    error = capsys.readouterr().err
    assert "does not fit" in error and "2 ranks with --fsdp full_shard" in error


def test_bad_words(vicuna: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main(["--model", vicuna, "--memory", "a lot"]) == 1
    assert '--memory: expected a size like "80GiB", got "a lot"' in capsys.readouterr().err
    assert plan.main(["--model", vicuna, "--world_size", "0"]) == 1
    assert "--world_size: expected at least 1" in capsys.readouterr().err


def test_speed_on_a_gpu(vicuna: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--gpu brings its memory, and a prediction that says so."""
    words = ["--model", vicuna, "--gpu", "H200", "--bf16", "--micro_batches", "8"]
    assert plan.main(words) == 0
    text = capsys.readouterr().out
    for part in ("of 135 GiB", "predicted, not measured: 14,", "1 x H200", "MFU 59%", "assumed: "):
        assert part in text
    record = json.loads(json.dumps(planned(capsys, *words)))
    assert record["predicted"]["gpu"] == "H200" and 0.5 < record["predicted"]["mfu"] < 0.7
    assert plan.main(["--model", vicuna, "--gpu", "H200", "--micro_batches", "8"]) == 0
    assert "no prediction of speed: it is made for bfloat16 and float16 compute" in capsys.readouterr().out


def test_gpus_that_are_not_known(vicuna: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main(["--model", vicuna, "--gpu", "Voodoo 2"]) == 1
    assert "expected a name with one of GB200, B200" in capsys.readouterr().err
    assert plan.main(["--model", vicuna, "--gpu", "H100", "--device", "cpu"]) == 1
    assert "--gpu H100 is for --device cuda" in capsys.readouterr().err


def test_a_file_of_flags(vicuna: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan of the run that the file begins, with training's length of rows; flags win."""
    file = tmp_path / "run.yaml"
    file.write_text(
        "model_name_or_path: elsewhere\nlora: true\nlora_r: 16\nlora_target_modules: all-linear\nbf16: true\n"
        "learning_rate: 1e-4\nseed: 7\n"
    )
    words = ["--lora", "--lora_r", "16", "--lora_target_modules", "all-linear", "--bf16"]
    by_flags = planned(capsys, vicuna, *words, "--model_max_length", "512", "--memory", "40GiB")
    assert planned(capsys, vicuna, "--config", str(file), "--memory", "40GiB") == by_flags
    longer = planned(capsys, vicuna, "--config", str(file), "--memory", "40GiB", "--model_max_length", "4096")
    assert longer != by_flags
    file.write_text("lora_r: 16\n")
    assert plan.main([vicuna, "--config", str(file)]) == 1
    assert "--lora_r: expected with --lora True" in capsys.readouterr().err
    file.write_text("lr: 1\n")
    with pytest.raises(SystemExit):
        plan.main([vicuna, "--config", str(file)])
    assert "unknown key 'lr'" in capsys.readouterr().err
