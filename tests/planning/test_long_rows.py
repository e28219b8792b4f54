"""Tiles and offloaded inputs are chosen for rows that do not fit otherwise, and the longest row is named."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import make_long_rows
from fastsft.arguments import TrainingArguments
from fastsft.cli import plan as plan_command
from fastsft.planning.gpus import gpu_named
from fastsft.planning.longest_row import longest_row
from fastsft.planning.memory_plan import BatchShape, EngineSettings, MemoryPlan, plan_memory
from fastsft.planning.plan_choice import choose_plan
from fastsft.planning.plan_request import TILE_TOKENS, MemoryBudget, PlanRequest
from fastsft.planning.time_model import predict
from memory_run import FAMILIES
from planning.test_memory_plan import CONFIGS, SETTING, changed

ON_GPU = changed(SETTING, device="cuda", compute_dtype="bfloat16")
ROW = 20_000
WORK = BatchShape.full(ROW, ROW)
TILE = TILE_TOKENS["cuda"]
GIB = 1 << 30


def form(setting: EngineSettings = ON_GPU, **state: Any) -> MemoryPlan:
    return plan_memory(setting.with_state(**state), "block", ROW, WORK)


def chosen(
    room: int, host: int | None = None, setting: EngineSettings = ON_GPU, **request: Any
) -> MemoryPlan:
    wish = PlanRequest(max_seqlen=ROW, step_tokens=ROW, **request)
    return choose_plan(setting, wish, lambda _: WORK, MemoryBudget(room, host))


def facts(plan: MemoryPlan) -> tuple[str, bool, int]:
    state = plan.setting.state
    return plan.recompute, state.offload_inputs, state.tile_tokens


def test_each_is_taken_where_the_one_before_does_not_fit() -> None:
    block, offloaded, tiles, both = (
        form(offload_inputs=offload, tile_tokens=tokens) for tokens in (0, TILE) for offload in (False, True)
    )
    assert block.total > max(offloaded.total, tiles.total) and both.total < min(offloaded.total, tiles.total)
    assert facts(chosen(block.total)) == ("block", False, 0)
    assert facts(chosen(block.total - 1)) == ("block", True, 0)
    assert facts(chosen(tiles.total, host=offloaded.host - 1)) == ("block", False, TILE)
    assert facts(chosen(both.total)) == ("block", True, TILE)
    with pytest.raises(ValueError, match=r"recompute block, inputs of blocks on the host, tiles of 8,192"):
        chosen(both.total - 1)


def test_flags_decide() -> None:
    both = form(offload_inputs=True, tile_tokens=100)
    plenty = 1 << 40
    assert facts(chosen(plenty, tile_tokens=100, offload_inputs=True)) == ("block", True, 100)
    assert facts(chosen(both.total, tile_tokens=100))[1:] == (True, 100)
    assert chosen(plenty, tile_tokens=100).recompute == "none"  # memory is there, so nothing is recomputed
    for flags in ({"tile_tokens": 0}, {"offload_inputs": False}):
        with pytest.raises(ValueError, match="does not fit"):
            chosen(form(offload_inputs=True, tile_tokens=TILE).total, **flags)


def test_a_cpu_has_tiles_alone() -> None:
    tile = TILE_TOKENS["cpu"]
    tiles = form(SETTING, tile_tokens=tile)
    assert facts(chosen(tiles.total, setting=SETTING)) == ("block", False, tile)
    assert facts(chosen(1 << 40, setting=SETTING, offload_inputs=True))[1] is False
    with pytest.raises(ValueError, match=f"tiles of {tile:,} tokens"):
        chosen(tiles.total - 1, setting=SETTING)


@pytest.mark.parametrize(
    "setting,why",
    [
        (
            changed(ON_GPU, config_json=json.dumps(FAMILIES["qwen3_moe"])),
            "a mixture of experts groups all tokens by expert",
        ),
        (
            ON_GPU.with_state(compute_dtype="bfloat16", fp8="tensorwise"),
            "tensorwise fp8 has one scale for all tokens",
        ),
    ],
    ids=["mixture", "tensorwise fp8"],
)
def test_what_needs_all_rows_at_once_has_no_tiles(setting: EngineSettings, why: str) -> None:
    states = [each.state for each in PlanRequest().variants(setting)]
    assert [(state.offload_inputs, state.tile_tokens) for state in states] == [(False, 0), (True, 0)]
    with pytest.raises(ValueError, match=f"--tile_tokens 64: expected 0, {why}; leave it out"):
        PlanRequest(tile_tokens=64).variants(setting)


def test_the_longest_row_fits_and_a_longer_one_does_not() -> None:
    room = MemoryBudget(3 * GIB)
    longest = longest_row(ON_GPU, PlanRequest(), room)
    assert longest is not None and facts(longest) == ("block", True, TILE)
    length = longest.work.max_seqlen
    assert longest.total <= room.device and length % 256 == 0
    longer = BatchShape.full(length + 256, length + 256)
    state = ON_GPU.with_state(tile_tokens=TILE, offload_inputs=True)
    assert plan_memory(state, "block", length + 256, longer).total > room.device
    assert longest_row(ON_GPU, PlanRequest(), MemoryBudget(1000)) is None


def test_the_host_limits_it() -> None:
    device = 3 * GIB
    free, tight = (
        longest_row(ON_GPU, PlanRequest(), MemoryBudget(device, host)) for host in (None, GIB // 8)
    )
    assert free and tight and tight.work.max_seqlen < free.work.max_seqlen and tight.host <= GIB // 8


def test_the_command_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", str(CONFIGS / "vicuna-7b.json"), "--gpu", "H100", "--bf16"]
    words += make_long_rows.EIGHT_BYTES.split()
    assert plan_command.main(words) == 0
    text = capsys.readouterr().out
    assert plan_command.main([*words, "--json"]) == 0
    longest = json.loads(capsys.readouterr().out)["longest_row"]
    assert (
        f"the longest row that fits: {longest:,} tokens (recompute block, inputs of blocks on the host, "
        f"tiles of {TILE:,} tokens)" in text
    )
    assert plan_command.main([*words, "--model_max_length", str(longest), "--json"]) == 0
    capsys.readouterr()
    assert plan_command.main([*words, "--model_max_length", str(longest + 256)]) == 1


def test_the_table_is_that_of_the_plans(capsys: pytest.CaptureFixture[str]) -> None:
    assert make_long_rows.main(["--check"]) == 0, capsys.readouterr().out


def test_the_goals_of_long_rows() -> None:
    """7B on one H100: 200,000 tokens. On eight 32B: 256,000, and 8B, whose row they share: 1,000,000."""
    goals = [
        (("vicuna-7b", 1, True), "both", 200_000),
        (("qwen2.5-32b", 8, True), "both", 256_000),
        (("llama-3.1-8b", 8, False), "both, a row on all GPUs", 1_000_000),
    ]
    rows = {(row.config, row.ranks, row.offload): row for row in make_long_rows.ROWS}
    for name, column, tokens in goals:
        plan = dict(zip(make_long_rows.COLUMNS, rows[name].plans(), strict=True))[column]
        assert plan and plan.work.max_seqlen >= tokens


def test_speed_of_a_long_row() -> None:
    """Each tile adds to the gradients; copies of inputs hide behind the blocks."""
    gpu = gpu_named("H100")
    assert gpu is not None
    setting = changed(
        EngineSettings((CONFIGS / "vicuna-7b.json").read_text(), gpu=gpu),
        device="cuda", compute_dtype="bfloat16", grad_dtype="bfloat16", optim_dtype="bfloat16",
        master_dtype="split",
    )  # fmt: skip
    work = BatchShape.full(65_536, 65_536)
    plain, halves, both = (
        predict(plan_memory(setting.with_state(**state), "block", 65_536, work), gpu)
        for state in ({}, {"tile_tokens": 32_768}, {"tile_tokens": TILE, "offload_inputs": True})
    )
    assert both.seconds["inputs to the host and back"] == 0
    once, twice, often = (each.seconds["accumulating gradients"] for each in (plain, halves, both))
    assert often - once == pytest.approx((65_536 / TILE - 1) * (twice - once))
    assert both.tokens_per_second > 0.97 * plain.tokens_per_second


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"tile_tokens": -1}, r"--tile_tokens: expected 0 \(no tiles\) or a number of tokens, got -1"),
        (
            {"offload_inputs": True, "recompute": "gate_up"},
            "--offload_inputs True needs --recompute block, got gate_up",
        ),
    ],
)
def test_bad_flags(
    flags: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=message):
        TrainingArguments(output_dir=str(tmp_path), **flags)
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    assert plan_command.main(["--model", str(CONFIGS / "vicuna-7b.json"), "--memory", "80GiB", *words]) == 1
    assert re.search(message, capsys.readouterr().err)


def test_a_generic_model_has_neither(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 100}
    (tmp_path / "gpt2.json").write_text(json.dumps(config))
    words = ["--model", str(tmp_path / "gpt2.json"), "--memory", "8GiB", "--model_max_length", "64"]
    assert plan_command.main([*words, "--tile_tokens", "32"]) == 1
    assert "--tile_tokens 32 needs the native engine; leave it out" in capsys.readouterr().err
    assert plan_command.main([*words, "--offload_inputs", "True"]) == 1
    assert "--offload_inputs True needs the native engine; leave it out" in capsys.readouterr().err
