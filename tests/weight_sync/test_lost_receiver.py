"""A receiver that dies, or is late, in the middle of a transfer."""

from __future__ import annotations

import os
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

LONELY = """
import torch.distributed as dist
from weight_sync_parts.modules import make_engine
from weight_sync_parts.receivers import make_groups
from fastsft.weight_sync import WeightReceiver, fsdp_sync_weight_nccl, sync_plan
import torch
engine = make_engine(torch.nn.Linear(1500, 1500), "plain")
for member, mode in enumerate(("vllm_packed", "native")):
    groups = make_groups(2, timeout_s=3600.0)
    try:
        if member == 0:
            fsdp_sync_weight_nccl(engine, groups[0], mode=mode, deadline_s=0.5)
        else:
            WeightReceiver(groups[1], sync_plan(engine), print, mode=mode, deadline_s=0.5).receive()
    except RuntimeError as error:
        print("failed or took more than" in str(error))
"""
PROGRAM = str(Path(__file__).parents[1] / "support" / "weight_sync_parts" / "lost_receiver.py")
OPTIONS: dict[str, Any] = {"bucket_bytes": 1 << 16}


@pytest.mark.variants("native")
@pytest.mark.parametrize(("mode", "end"), [("native", "dies"), ("vllm_packed", "dies"), ("native", "hangs")])
def test_a_receiver_lost_half_way_is_an_error_within_the_deadline(
    tmp_path: Path, mode: str, end: str
) -> None:
    engine = make_engine(torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)]), "plain")
    plan = sync_plan(engine)
    deadline_s = 1.0 if end == "hangs" else 90.0
    (tmp_path / "plan").write_bytes(pickle.dumps((plan.tensors, plan.tied)))
    words = [f"{tmp_path}/store", f"{tmp_path}/plan", mode, end, str(OPTIONS["bucket_bytes"])]
    child = subprocess.Popen([sys.executable, PROGRAM, *words])
    try:
        group = WeightGroup(dist.FileStore(f"{tmp_path}/store", 2), 0, 2, timeout_s=60.0)
        began = time.monotonic()
        with pytest.raises(RuntimeError, match="failed or took more than") as caught:
            fsdp_sync_weight_nccl(engine, group, mode=mode, deadline_s=deadline_s, **OPTIONS)
        assert time.monotonic() - began < 60.0  # a receiver that died is not waited for
        assert "sending version 1: rank 0 failed" in str(caught.value)
    finally:
        child.kill()
        child.wait(timeout=60)


def test_a_process_whose_peer_was_silent_can_end() -> None:
    """gloo ends what is under way only by its own timeout, and a group waits for that."""
    support = str(Path(__file__).parents[1] / "support")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([support, *sys.path])}
    command = [sys.executable, "-c", LONELY]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout.split()) == (0, ["True", "True"]), done.stderr
