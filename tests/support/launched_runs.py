"""Flags of small runs that tests launch, and the processes that they leave behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TRAINER = Path(__file__).parents[1] / "golden" / "trainer"
FLAGS: dict[str, Any] = {
    "model_name_or_path": str(TRAINER / "model_untied"), "data_path": str(TRAINER / "data" / "first48.json"),
    "use_cpu": True, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 1, "logging_steps": 1,
    "learning_rate": 1e-4, "lr_scheduler_type": "constant", "model_max_length": 128, "save_strategy": "no",
    "plot_loss": False,
}  # fmt: skip


def processes_with(mark: str) -> list[int]:
    """Pids of living processes whose environment holds `mark`."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (
                mark.encode() in (path / "environ").read_bytes()
                and "State:\tZ" not in (path / "status").read_text()
            ):
                found.append(int(path.name))
        except OSError:
            continue
    return found
