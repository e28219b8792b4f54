"""A receiver that dies, or is late, in the middle of a transfer."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fastsft.weight_sync import WeightGroup, fsdp_sync_weight_nccl, sync_plan
from weight_sync_parts.modules import make_engine

PROGRAM = str(Path(__file__).parents[1] / "weight_sync_parts" / "lost_receiver.py")
OPTIONS: dict[str, Any] = {"bucket_bytes": 1 << 16}


@pytest.mark.parametrize("mode", ["native", "vllm_packed"])
@pytest.mark.parametrize("end", ["dies", "hangs"])
def test_a_receiver_lost_half_way_is_an_error_within_the_deadline(
    tmp_path: Path, mode: str, end: str
) -> None:
    engine = make_engine(torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)]), "plain")
    plan = sync_plan(engine)
    deadline_s = 1.0 if end == "hangs" else 20.0
    (tmp_path / "plan").write_bytes(pickle.dumps((plan.tensors, plan.tied)))
    words = [f"{tmp_path}/store", f"{tmp_path}/plan", mode, end, str(OPTIONS["bucket_bytes"])]
    child = subprocess.Popen([sys.executable, PROGRAM, *words])
    group = WeightGroup(dist.FileStore(f"{tmp_path}/store", 2), 0, 2)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="failed or took more than") as caught:
        fsdp_sync_weight_nccl(engine, group, mode=mode, deadline_s=deadline_s, **OPTIONS)
    assert time.monotonic() - began < 10.0
    assert "sending version 1: rank 0 failed" in str(caught.value)
    if end == "hangs":
        child.kill()
    child.wait(timeout=60)
