"""Ranks that hang or fail, in every phase: nobody waits for ever, the guilty one is heard once.

docs/spec/reliability.md, rows R10 and R11.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from warm_ranks import WarmRanks, spread

TIMEOUT = 4  # seconds
LIMITS = {
    "phase_timeouts": ",".join(f"{name}={TIMEOUT}" for name in ("first_step", "step", "save", "evaluation"))
}
EVALUATED = {"eval_strategy": "steps", "eval_steps": 2, "eval_data_path": "data/first48.json"}

HANGS: dict[str, tuple[str, str, int]] = {
    "asleep in forward": ("op:rms_norm", "sleep", 20),
    "stopped": ("op:rms_norm", "freeze", 20),
    "asleep in save": ("fastsft.saving:CheckpointSaver.save", "sleep", 1),
    "another collective": ("op:embedding_backward", "mismatch", 4),
}
# Where a rank fails, and the call; `load` and `tokenize` come before the ranks have met for training.
FAILURES = {
    "load": ("fastsft.model:CausalLM.from_pretrained", 1),
    "tokenize": ("fastsft.data.data_module:label_conversation_file", 1),
    "forward": ("op:rms_norm", 20),
    "save": ("fastsft.checkpoint.content:read_random_states", 1),
    "evaluate": ("fastsft.trainer.evaluation:_token_losses", 2),
}


def hang(warm: WarmRanks, flags: dict[str, Any], output: Path, kind: str, guilty: int, ranks: int) -> str:
    """Empty, or what is wrong."""
    target, action, call = HANGS[kind]
    given = spread({**flags, **LIMITS, "save_steps": 2}, ranks)
    run = warm.start(given, output, ranks, ("place", target, action, guilty, call, 600.0))
    run.wait_for(f"reached {target}", rank=guilty)
    began = time.monotonic()
    statuses = run.wait(TIMEOUT + 30)
    others = [status for rank, status in enumerate(statuses) if rank != guilty]
    seconds = time.monotonic() - began
    # A stopped process cannot end itself: its launcher does, as `wait` does here.
    mine = statuses[guilty]
    if set(others) != {3} or mine not in ((None,) if action == "freeze" else (1, 3)):
        return f"{kind}: {statuses} after {seconds:.0f} s\n{run.all_text()}"
    for rank in range(ranks):
        text = run.text(rank, "err")
        if rank != guilty and not (
            f"error: rank {rank} of {ranks}, step " in text and "last collective: " in text
        ):
            return f"{kind}: rank {rank} said {text!r}"
    return ""


def test_a_rank_asleep_in_forward_ends_all(warm: WarmRanks, flags: dict[str, Any], tmp_path: Path) -> None:
    assert hang(warm, flags, tmp_path, "asleep in forward", 1, 2) == ""


@pytest.mark.parametrize(("target", "guilty"), [("label_with_cache", 0), ("open_cache", 1)])
def test_a_rank_stuck_with_the_data_ends_all(
    warm: WarmRanks, flags: dict[str, Any], tmp_path: Path, target: str, guilty: int
) -> None:
    """Rank 0 labels and the other waits for it; or the other does not come on with what was labelled."""
    given = {**flags, "phase_timeouts": "data=2,init=4", "data_cache": str(tmp_path / "cache")}
    place = ("place", f"fastsft.data.label_files:{target}", "sleep", guilty, 1, 600.0)
    run = warm.start(spread(given, 2), tmp_path / "out", 2, place)
    run.wait_for(f"reached fastsft.data.label_files:{target}", rank=guilty)
    assert run.wait(60)[guilty] == 3, run.all_text()
    assert run.statuses[1 - guilty] == 3, run.all_text()
    assert "no progress for 2 s in phase data" in run.text(guilty, "err")


@pytest.mark.chaos
@pytest.mark.parametrize("kind", HANGS)
@pytest.mark.parametrize("trial", range(10))
def test_hangs_ten_times(
    warm: WarmRanks, flags: dict[str, Any], tmp_path: Path, kind: str, trial: int
) -> None:
    ranks = (2, 4)[trial % 2]
    assert hang(warm, flags, tmp_path, kind, trial % ranks, ranks) == ""


# Every phase and both ranks; the other five pairs are long tests.
PAIRS = [
    pytest.param(phase, guilty, marks=() if number % 2 == guilty else pytest.mark.chaos)
    for number, phase in enumerate(FAILURES)
    for guilty in (0, 1)
]


@pytest.mark.variants("forward-0", "save-1", "tokenize-1")
@pytest.mark.parametrize(("phase", "guilty"), PAIRS)
def test_a_rank_that_fails_ends_all_and_is_heard_once(
    warm: WarmRanks, flags: dict[str, Any], tmp_path: Path, phase: str, guilty: int
) -> None:
    target, call = FAILURES[phase]
    given = spread(
        {**flags, "save_steps": 1, "max_steps": 4, **(EVALUATED if phase == "evaluate" else {})}, 2
    )
    run = warm.start(given, tmp_path, 2, ("place", target, "fail", guilty, call))
    statuses = run.wait(60)
    text = run.all_text()
    assert None not in statuses, f"hangs:\n{text}"
    assert statuses[guilty] == 1 and statuses[1 - guilty] in (1, 3), text
    assert text.count("RuntimeError: an injected fault") == 1, text
    assert text.count("Traceback (most recent call last)") == 1, text
