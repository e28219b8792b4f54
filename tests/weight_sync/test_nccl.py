"""NCCL with one GPU: a sender alone, since NCCL takes no two ranks on one device. No GPU has run it yet."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from fastsft.weight_sync import WeightGroup, fsdp_sync_weight_nccl
from fastsft.weight_sync.modes import MODES as ALL_MODES
from weight_sync_parts.modules import make_engine, make_model

MODES = sorted(name for name, mode in ALL_MODES.items() if not mode.every_rank)


@pytest.mark.cuda
@pytest.mark.parametrize("mode", MODES)
def test_a_sender_alone_in_its_group(mode: str) -> None:
    engine = make_engine(make_model(False).cuda(), "plain")
    group = WeightGroup(dist.HashStore(), 0, 1, backend="nccl", timeout_s=60.0)
    options: dict[str, Any] = {"mode": mode, "bucket_bytes": 96, "deadline_s": 60.0}
    assert [fsdp_sync_weight_nccl(engine, group, **options) for _ in range(3)] == [1, 2, 3]
    torch.cuda.synchronize()
    group.rebuild()
    assert fsdp_sync_weight_nccl(engine, group, **options) == 4
