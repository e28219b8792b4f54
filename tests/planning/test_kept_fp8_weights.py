"""The memory plan keeps weights in 8 bits on a GPU if they fit, unless a flag forbids it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fastsft import _C
from fastsft.cli import plan

CONFIGS = Path(__file__).parents[2] / "benchmarks" / "configs"
SEVEN = ["--model", str(CONFIGS / "vicuna-7b.json"), "--bf16", "--fp8", "rowwise"]
LORA = ["--gpu", "H200", "--lora", "--lora_r", "16"]


def planned(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return the plan as JSON. Its text says whether weights are kept in 8 bits."""
    assert plan.main([*SEVEN, *words]) == 0
    text = capsys.readouterr().out
    assert plan.main([*SEVEN, *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["keep_fp8_weights"] == ("weights kept in 8 bits" in text)
    return found


def test_they_are_kept_where_they_fit(capsys: pytest.CaptureFixture[str]) -> None:
    """Two bytes for each of 6.5e9 elements of linear layers. The longest row is found without them."""
    flag = "--keep_fp8_weights"
    found, others, given = (planned([*LORA, *words], capsys) for words in ([], [flag, "False"], [flag]))
    assert found["keep_fp8_weights"] and not others["keep_fp8_weights"]
    for name in ("micro_batch_tokens", "recompute"):
        assert found[name] == others[name]
    assert found["predicted"]["tokens_per_second"] > others["predicted"]["tokens_per_second"]
    assert found["longest_row"] == others["longest_row"] > given["longest_row"]
    assert found | {"longest_row": given["longest_row"]} == given
    assert found["parts"]["parameters"] - others["parts"]["parameters"] == pytest.approx(
        2 * 6.476e9, rel=0.01
    )


def test_they_are_kept_on_several_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--gpu", "H100", "--world_size", "2", "--lora", "--lora_r", "16"]
    # the speed of two machines is not predicted
    machines = ["--gpu", "H200", "--world_size", "16", "--local_world_size", "8", "--fsdp", "shard_grad_op"]
    for each in (words, [*words, "--fsdp", "shard_grad_op"], machines):
        found = planned(each, capsys)
        others = planned([*each, "--keep_fp8_weights", "False"], capsys)
        assert found["keep_fp8_weights"] and found["staging"] == others["staging"]


@pytest.mark.parametrize(
    "words",
    [
        ["--gpu", "H200"],  # the optimizer state leaves no room
        ["--gpu", "H100", "--world_size", "8", "--fsdp", "full_shard"],
        ["--device", "cpu", "--memory", "512GiB"],
    ],
    ids=["no room", "full_shard", "cpu"],
)
def test_they_are_left_out(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(words, capsys)
    assert not found["keep_fp8_weights"] and found == planned([*words, "--keep_fp8_weights", "False"], capsys)


def test_strategies_that_have_weights_whole() -> None:
    whole = set(_C.strategies_with_whole_weights())
    assert whole < set(_C.strategies()) and {"no_shard", "shard_grad_op"} <= whole
    assert not {"full_shard", "hybrid_shard"} & whole


@pytest.mark.parametrize("words", [["--lora", "--lora_r", "16", "--q_lora"]])
def test_a_plan_refuses_what_a_run_refuses(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main([*SEVEN, "--gpu", "H100", *words]) == 1
    assert "use --q_lora True or --fp8, not both" in capsys.readouterr().err
