"""fsdp_save_state_dict and fsdp_upload_state_dict without a logger of the caller's."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from torch import nn

from fastsft.weight_sync import (
    CheckpointCoordinator,
    Synchronizer,
    fsdp_save_state_dict,
    fsdp_upload_state_dict,
)
from weight_sync_parts.modules import make_engine


def test_none_is_the_modules_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine, coordinator = make_engine(nn.Linear(2, 3), "plain", per_tensor=False), CheckpointCoordinator()
    with caplog.at_level(logging.INFO):
        ticket = fsdp_save_state_dict(engine, str(tmp_path), 1, coordinator, None)
        fsdp_upload_state_dict(engine, Synchronizer(), 1, None)
    assert ticket is not None
    ticket.wait(60)
    assert "saving the weights" in caplog.text
    assert "weights uploaded" in caplog.text
