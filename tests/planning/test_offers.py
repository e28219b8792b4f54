"""What a refusal for lack of memory offers: each offer is applied, and planned again."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from doctor_patient import Patient
from family_models import write_family
from fastsft.cli import plan
from fastsft.doctor import machine
from fastsft.train import train
from golden_text import conversation_file

CONFIGS = Path(__file__).parents[2] / "benchmarks" / "configs"
LORA = "--lora True --lora_r 16 --lora_target_modules all-linear"
KINDS = (
    "--recompute",
    "--micro_batch_tokens",
    "--bf16",
    "--grad_dtype",
    "--optim adamw_8bit",
    "offload",
    LORA,
    "--context_parallel_size",
    "--model_max_length",
    "ranks",
)
GENERIC = {"model_type": "gpt2", "n_embd": 2048, "n_layer": 24, "n_head": 16, "vocab_size": 50257}


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert plan.main(words) == 1
    return capsys.readouterr().err


def offers(message: str) -> list[tuple[str, float]]:
    """The flags of each offer, with its figure in GiB."""
    _, _, text = message.strip().partition("what would fit: ")
    found = [re.fullmatch(r"(.*?)(?:, [^(]*)? \(([\d.,]+) ([GM])iB.*\)", part) for part in text.split("; ")]
    assert all(found), text
    return [(m[1], float(m[2].replace(",", "")) / (1 if m[3] == "G" else 1024)) for m in found if m]


def as_flags(offer: str) -> list[str]:
    """The words that a user adds to the command."""
    ranks, _, flags = offer.partition(" ranks with ")
    return ["--world_size", ranks, *shlex.split(flags)] if flags else shlex.split(offer)


@pytest.mark.parametrize(
    "words",
    [
        "vicuna-7b --gpu 4090 --bf16", "vicuna-7b --gpu 4090", "vicuna-13b --gpu L4 --bf16",
        "vicuna-7b --gpu H100 --bf16", "qwen3-8b --gpu A100-40GB --bf16 --recompute none",
        "qwen2.5-0.5b --gpu T4 --fp16 --recompute none --micro_batch_tokens 8192",
        "qwen2.5-0.5b --memory 9GiB --bf16",
        "vicuna-7b --memory 11GiB --bf16", "mistral-7b --memory 10GiB --bf16 --model_max_length 8192",
        f"vicuna-7b --memory 14GiB --bf16 {LORA}", f"vicuna-13b --memory 10GiB --bf16 {LORA} --q_lora",
        "vicuna-7b --gpu 5090 --bf16 --world_size 2 --fsdp shard_grad_op",
        "vicuna-7b --gpu H100 --bf16 --fp8 rowwise --keep_fp8_weights",
        "vicuna-7b --memory 40GiB --device cuda --bf16 --fp8 rowwise --keep_fp8_weights --world_size 2 "
        "--fsdp shard_grad_op",
        "llama-3.2-1b --gpu 3090 --bf16 --micro_batch_tokens 32768",
        "llama-3.2-1b --device cpu --memory 12GiB",
        "llama-3.1-8b --gpu 4090 --bf16 --grad_dtype bfloat16 --optim adamw_8bit",
        "vicuna-7b --gpu 4090 --bf16 --optim adafactor", "vicuna-7b --memory 20GiB --device cuda --optim sgd",
        "llama-3.1-8b --gpu H100 --bf16 --world_size 8 --fsdp full_shard --model_max_length 1000000",
        "llama-3.2-1b --gpu T4", "llama-3.2-1b --gpu T4 --fp16", "generic --gpu 4090 --model_max_length 1024",
    ],
)  # fmt: skip
def test_each_offer_fits(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, *flags = words.split()
    (tmp_path / "generic.json").write_text(json.dumps(GENERIC))
    model = tmp_path / "generic.json" if name == "generic" else CONFIGS / f"{name}.json"
    command = ["--model", str(model), *flags]
    found = offers(refusal(command, capsys))
    assert found
    for offer, gib in found:
        assert plan.main([*command, *as_flags(offer), "--json"]) == 0, offer
        planned = json.loads(capsys.readouterr().out)
        assert planned["total"] <= planned["memory"] and gib <= planned["memory"] / 2**30 + 0.05, offer


def test_order_is_that_of_the_cost(capsys: pytest.CaptureFixture[str]) -> None:
    """Recomputation before rounding, offload, LoRA, QLoRA, shorter rows, and more GPUs last."""
    words = ["--bf16", "--recompute", "none", "--micro_batch_tokens", "8192", "--device", "cuda", "--memory"]
    seen = set()
    for model, memory in (
        ("llama-3.2-1b", "24"),
        ("llama-3.2-1b", "27"),
        ("qwen2.5-0.5b", "14"),
        ("mistral-7b", "80"),
        ("qwen3-8b", "16"),
    ):
        message = refusal(["--model", str(CONFIGS / f"{model}.json"), *words, f"{memory}GiB"], capsys)
        places = [max(i for i, kind in enumerate(KINDS) if kind in offer) for offer, _ in offers(message)]
        assert places == sorted(places) and places.count(KINDS.index("ranks")) <= 1, message
        seen.update(places)
    assert len(seen) >= 6


def test_moments_of_eight_bits_before_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    """8.03e9 weights of 4 bytes, gradients of 2 and moments of 2.03 fit into 80 GB."""
    words = ["--model", str(CONFIGS / "llama-3.1-8b.json"), "--bf16", "--gpu", "H100"]
    (first, gib), (second, _), *_ = offers(refusal(words, capsys))
    assert first == "--grad_dtype bfloat16 --optim adamw_8bit" and "offload" in second
    assert 8.03 * 8.03e9 / 2**30 < gib < 8.03 * 8.03e9 / 2**30 + 10


def test_a_seven_billion_on_a_4090(capsys: pytest.CaptureFixture[str]) -> None:
    """Adapters before eight GPUs: 14.5 GiB, of which 12.6 are the frozen weights; 4 bits take 0.516 bytes."""
    words = ["--model", str(CONFIGS / "vicuna-7b.json"), "--bf16", "--gpu", "RTX 4090"]
    (lora, of_lora), (four_bits, of_four), (ranks, _) = offers(refusal(words, capsys))
    assert (lora, four_bits) == (LORA, f"{LORA} --q_lora True") and ranks.startswith("8 ranks with")
    frozen = 6.738e9 / 2**30
    assert 2 * frozen < of_lora < 2 * frozen + 3 and 0.516 * frozen < of_four < 0.516 * frozen + 3.5


def test_shorter_rows_are_a_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    """Adapters in 4 bits fit with rows of 1,024 tokens where those of 8,192 do not."""
    words = [
        "--model",
        str(CONFIGS / "llama-3-8b.json"),
        "--bf16",
        "--memory",
        "11GiB",
        "--model_max_length",
        "8192",
    ]
    found = [offer for offer, _ in offers(refusal([*words, "--device", "cuda"], capsys))]
    assert any(offer.startswith(f"{LORA} --q_lora True --model_max_length ") for offer in found), found


# A small Mistral: parameters, gradients and moments take 8 MiB, a run with adapters 4.7 MiB.
ENOUGH_FOR_ADAPTERS = 7 << 20


def test_ranks_share_a_row_that_no_rank_holds(capsys: pytest.CaptureFixture[str]) -> None:
    """Four of eight ranks; seven do not divide the 32 heads of Llama 3."""
    words = ["--bf16", "--gpu", "H100", "--fsdp", "full_shard", "--model_max_length", "1000000"]
    llama = ["--model", str(CONFIGS / "llama-3.1-8b.json"), *words, "--world_size"]
    shared = [offer for offer, _ in offers(refusal([*llama, "8"], capsys)) if "context" in offer]
    assert shared == ["--context_parallel_size 4"]
    assert plan.main([*llama, "8", "--context_parallel_size", "2"]) == 1
    assert "--context_parallel_size" not in capsys.readouterr().err.partition("what would fit")[2]
    assert plan.main([*llama, "7"]) == 1
    assert "--context_parallel_size" not in capsys.readouterr().err
    assert plan.main([*llama, "8", "--context_parallel_size", "3"]) == 1
    assert "expected a divisor of --world_size 8, got 3" in capsys.readouterr().err
    assert plan.main([*llama, "12", "--context_parallel_size", "12"]) == 1
    assert "context_parallel_size: expected 1, 2, 4, 8, 16 or 32, by which" in capsys.readouterr().err


def test_training_offers_them_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start of a run refuses with the same offers, and a run with the offered flags is trained."""
    flags = {
        "model_name_or_path": str(write_family(tmp_path / "model", "mistral")), "use_cpu": True,
        "data_path": str(conversation_file("dummy_conversation")), "output_dir": str(tmp_path / "out"),
        "max_steps": 1, "model_max_length": 64, "report_to": "none", "data_cache": "none", "max_dropped": 1.0,
        "per_device_train_batch_size": 1,
    }  # fmt: skip
    monkeypatch.setattr("fastsft.trainer.planner.rank_memory", lambda device: ENOUGH_FOR_ADAPTERS)
    with pytest.raises(ValueError, match=r"what would fit: .*--lora True --lora_r 16 "):
        train(flags)
    train({**flags, "lora": True, "lora_r": 16, "lora_target_modules": ["all-linear"]})


def test_doctor_offers_them_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = Patient(write_family(tmp_path / "model", "mistral"), tmp_path, capsys)
    memory = int(ENOUGH_FOR_ADAPTERS / 0.9)  # a tenth is left over
    monkeypatch.setattr(machine, "available_host_memory", lambda: memory)
    mark, text = patient(model_max_length="64", skip="disk_rate,communication,disk_space")["memory"]
    assert mark == "failed" and "what would fit" in text and "--lora True" in text
