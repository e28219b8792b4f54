"""Runs with other optimizers are killed and go on: the end is that of the whole run, bit by bit."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from warm_ranks import WarmRanks, losses, spread, weights_digest

RATES = {"sgd": 0.1, "adafactor": 1e-3, "adamw_8bit": 1e-3}


@pytest.mark.variants("adamw_8bit-1")
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("optim", RATES)
def test_killed_and_resumed(
    optim: str, ranks: int, warm: WarmRanks, flags: dict[str, Any], tmp_path: Path
) -> None:
    own = {**flags, "optim": optim, "learning_rate": RATES[optim], "weight_decay": 0.1}
    own |= {"fsdp": "full_shard"} if ranks > 1 else {}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    warm.train(spread(own, ranks), whole, ranks)
    run = warm.start(spread(own, ranks), killed, ranks)
    run.wait_for("saving checkpoint-6")
    run.send(signal.SIGKILL, *range(ranks))
    assert None not in run.wait(60)
    text = warm.train(spread(own, ranks), killed, ranks)
    assert "resumed from" in text
    assert weights_digest(killed) == weights_digest(whole)
    assert losses(killed) == losses(whole)


def test_another_optimizer_is_refused(warm: WarmRanks, flags: dict[str, Any], tmp_path: Path) -> None:
    output = tmp_path / "out"
    warm.train({**flags, "optim": "sgd", "max_steps": 3}, output)
    run = warm.start({**flags, "optim": "adafactor"}, output)
    assert run.wait(60) == [1]
    expected = (
        "holds the state of sgd, the run has adafactor; resume with --optim sgd, or train from its weights"
    )
    assert expected in " ".join(run.all_text().split())
