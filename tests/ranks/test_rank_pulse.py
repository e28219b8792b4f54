"""Ranks that wait for an upload of rank 0: it may take longer than any collective."""

from __future__ import annotations

import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import huggingface_hub
import torch.distributed as dist

from fastsft import _C
from fastsft.ranks import rank0_first
from fastsft.ranks.store import HeldPort, loopback_store
from fastsft.trainer.hub_uploads import HubUploads
from ranks import run_ranks

COLLECTIVE, STANDSTILL, UPLOAD = 1.0, 4.0, 5.0  # seconds


def upload(groups: dict[str, str], directory: str, port: int, fails: bool) -> str:
    """`HubUploads.model` with limits that the upload exceeds; what it returned or raised."""
    rank0_first._WAIT_SECONDS = rank0_first._BEAT_SECONDS = 0.1
    # The store of these ranks is a file, which counts whole seconds.
    store = loopback_store(dist.get_rank(), 2, timedelta(seconds=60), port)
    rank0_first._store = lambda: store

    def take_long(**given: str) -> str:
        time.sleep(0 if fails else UPLOAD)
        if fails:
            raise OSError("no route")
        return "commit"

    api = mock.create_autospec(huggingface_hub.HfApi, instance=True)
    api.create_repo.return_value = mock.Mock(repo_id="me/mine")
    api.upload_folder.side_effect = take_long
    arguments = mock.Mock(
        output_dir=directory, phase_timeouts=f"save={STANDSTILL}", world_size=2, hub_revision=None
    )
    with mock.patch.object(huggingface_hub, "HfApi", lambda token: api):
        uploads = HubUploads(SimpleNamespace(args=arguments), lambda directory: None)
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=COLLECTIVE))
        try:
            return str(uploads.model(directory, "Model save"))
        except (RuntimeError, _C.PeerFailedError) as error:
            return str(error)


def on_two_ranks(directory: Path, fails: bool) -> list[str]:
    (directory / "README.md").write_text("my own words")
    with closing(HeldPort()) as port:
        outcomes: list[str] = run_ranks(
            2, upload, str(directory), port.number, fails, launched=True, seconds=100
        )
    return outcomes


def test_a_long_upload_ends_nobody(tmp_path: Path) -> None:
    assert on_two_ranks(tmp_path, fails=False) == ["commit", "None"]


def test_a_failed_upload_fails_everywhere(tmp_path: Path) -> None:
    first, other = on_two_ranks(tmp_path, fails=True)
    assert "is saved, but not uploaded: no route" in first
    assert "rank 0 failed" in other and "no route" in other
