"""With real Ray: trainer ranks, monitors and synchronizers are actors, ours and such as Trinity's.

Among the long tests, because Ray is 80 MB to install (`pip install ray`) and takes its time to start.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fastsft.weight_sync import CheckpointMonitor, Synchronizer, read_state_dict

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'fastsft[ray]'")

from weight_sync_parts import ray_world  # noqa: E402
from weight_sync_parts.trinity_monitor import TrinityMonitor  # noqa: E402

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module", autouse=True)
def running_ray() -> Iterator[None]:
    tests = str(Path(__file__).parents[1])
    paths = os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])
    ray.init(
        namespace=ray_world.NAMESPACE, num_cpus=2, object_store_memory=80_000_000, include_dashboard=False,
        log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}},
    )  # fmt: skip
    yield
    ray.shutdown()


def test_the_functions_with_ray(tmp_path: Path) -> None:
    free: dict[str, Any] = {"num_cpus": 0}
    for kind in ("ours", "trinity"):
        (tmp_path / kind).mkdir()
    monitor = CheckpointMonitor.get_actor(ray_world.NAMESPACE, default_local_dir=str(tmp_path / "ours"))
    again = CheckpointMonitor.get_actor(ray_world.NAMESPACE, default_local_dir=str(tmp_path / "ours"))
    assert monitor._actor_id == again._actor_id
    trinity = ray.remote(TrinityMonitor).options(name="trinity_monitor", **free)
    trinity = trinity.remote(str(tmp_path / "trinity"))
    synchronizer = ray.remote(Synchronizer).options(name="checkpoint_synchronizer", **free).remote()
    foreign = ray.remote(ray_world.TrinitySynchronizer).options(name="trinity_synchronizer", **free).remote()
    ranks = [ray.remote(ray_world.TrainerRank).options(**free).remote() for _ in range(2)]
    running = [actor.run.remote(rank, 2, str(tmp_path)) for rank, actor in enumerate(ranks)]
    outcomes = ray.get(running, timeout=240)
    expected = outcomes[0]["expected"]

    def same(received: dict[str, torch.Tensor]) -> None:
        assert received.keys() == expected.keys()
        assert all(torch.equal(received[name], tensor) for name, tensor in expected.items())

    assert ray.get(monitor.latest_steps.remote()) == (0, 1)
    assert ray.get(trinity.get_calls.remote()) == [("started",), ("finished", 1, True)]
    for kind in ("ours", "trinity"):
        assert (tmp_path / kind / "latest_state_dict_iteration.txt").read_text() == "1"
        same(read_state_dict(tmp_path / kind / "global_step_1" / "actor"))
    packed, version = ray.get(synchronizer.get_model_state_dict.remote())
    assert version == 1
    same(packed)
    ((state_dict, step),) = ray.get(foreign.get_calls.remote())
    assert step == 2
    same(state_dict)
    for outcome in outcomes:
        assert "uploading step 3: rank 0 failed" in outcome["error"] and "no room" in outcome["error"]


def test_an_object_store_that_is_too_small_is_said_before_the_transfer() -> None:
    from fastsft.weight_sync import fsdp_upload_state_dict
    from weight_sync_parts.modules import make_engine
    from weight_sync_parts.save_world import LOGGER

    synchronizer = ray.remote(Synchronizer).options(num_cpus=0).remote()
    big = torch.nn.Linear(10_000, 2_100, bias=False)
    with pytest.raises(RuntimeError, match=r"the weights have 84000000 bytes, Ray's object store 80000000"):
        fsdp_upload_state_dict(make_engine(big, "plain"), synchronizer, 1, LOGGER)
