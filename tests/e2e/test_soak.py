"""Ten thousand steps, a save every ten, two kept: memory and descriptors stay flat.

docs/spec/reliability.md, row R19.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

from fastsft import _C
from fastsft.callbacks import TrainerCallback
from saving_run import make_trainer
from tiny_models import write_model


class Held(TrainerCallback):
    """Resident bytes and open descriptors after every hundredth save."""

    def __init__(self) -> None:
        self.resident: list[int] = []
        self.descriptors: list[int] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % 1000 == 5:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.resident.append(pages * os.sysconf("SC_PAGE_SIZE"))
            self.descriptors.append(open_descriptors())


def open_descriptors() -> int:
    """Without those of a save that is still being written behind the training."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            count += ".fastsft-tmp" not in os.readlink(f"/proc/self/fd/{name}")
    return count


@pytest.mark.chaos
def test_ten_thousand_steps(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", "untied")
    steps = int(os.environ.get("FASTSFT_SOAK_STEPS", "10000"))
    trainer = make_trainer(
        model, tmp_path / "out", max_steps=steps, save_steps=10, save_total_limit=2, logging_steps=1000
    )
    held = Held()
    trainer.callback_handler.callbacks.append(held)
    trainer.train()
    assert trainer.state.global_step == steps and len(held.resident) >= 3
    print(held.resident, held.descriptors)
    later = held.resident[1:]  # the first thousand steps fill caches
    assert max(later) <= 1.02 * min(later), later
    assert max(held.descriptors[1:]) - min(held.descriptors[1:]) <= 1, held.descriptors
    assert _C.list_checkpoints(str(tmp_path / "out")) == [f"checkpoint-{steps - 10}", f"checkpoint-{steps}"]
