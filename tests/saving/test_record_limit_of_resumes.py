"""--max_record_bytes changes no label: a run resumes with another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from family_models import write_family
from fastsft.checkpoint import run_identity
from fastsft.checkpoint.run_identity import read_run_state
from fastsft.train import train
from golden_text import human_gpt


@pytest.mark.parametrize("is_old", [False, True])
def test_another_limit(is_old: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """is_old: the checkpoint has the limit among its labels, as they had."""
    records = [{"conversations": human_gpt(f"Hello {i}?", "Hi there.")} for i in range(8)]
    (tmp_path / "data.json").write_text(json.dumps(records))
    flags: dict[str, Any] = {
        "model_name_or_path": str(write_family(tmp_path / "model", "llama3")),
        "output_dir": str(tmp_path / "out"),
        "data_path": str(tmp_path / "data.json"), "per_device_train_batch_size": 2, "model_max_length": 128,
        "num_train_epochs": 1, "save_steps": 2, "use_cpu": True, "report_to": "none", "data_cache": "none",
        "plot_loss": False,
    }  # fmt: skip
    with monkeypatch.context() as patch:
        if is_old:
            patch.setattr(run_identity, "label_identity", lambda labelling: dict(labelling))
        train({**flags, "max_steps": 2, "max_record_bytes": 1 << 20})
    saved = read_run_state(tmp_path / "out" / "checkpoint-2")["labelling"]
    assert ("max_record_bytes" in saved) == is_old
    output = train({**flags, "max_steps": 4})
    assert output is not None and output.global_step == 4
    assert (
        json.loads((tmp_path / "out" / "data_report.json").read_text())["train"]["max_record_bytes"]
        == 1 << 26
    )
