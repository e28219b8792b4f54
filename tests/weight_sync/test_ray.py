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

ray = pytest.importorskip("ray", reason="needs Ray: pip install ray")

from weight_sync_parts import ray_world  # noqa: E402
from weight_sync_parts.trinity_monitor import TrinityMonitor  # noqa: E402

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module", autouse=True)
def running_ray() -> Iterator[None]:
    support = str(Path(__file__).parents[1] / "support")
    paths = os.pathsep.join([support, os.environ.get("PYTHONPATH", "")])
    ray.init(
        namespace=ray_world.NAMESPACE, num_cpus=2, object_store_memory=80_000_000, include_dashboard=False,
        log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}},
    )  # fmt: skip
    yield
    ray.shutdown()


@pytest.mark.parametrize(("world_size", "kind"), [(2, "fsdp2"), (4, "fsdp1")])
def test_the_functions_with_ray(tmp_path: Path, world_size: int, kind: str) -> None:
    namespace = f"{ray_world.NAMESPACE}-{kind}"
    for other in ("ours", "trinity"):
        (tmp_path / other).mkdir()
    monitor = CheckpointMonitor.get_actor(namespace, default_local_dir=str(tmp_path / "ours"))
    again = CheckpointMonitor.get_actor(namespace, default_local_dir=str(tmp_path / "ours"))
    assert monitor._actor_id == again._actor_id

    def make(actor: type, name: str | None = None) -> Any:
        return ray.remote(actor).options(num_cpus=0, name=name, namespace=namespace)

    trinity = make(TrinityMonitor, "trinity_monitor").remote(str(tmp_path / "trinity"))
    synchronizer = make(Synchronizer, "checkpoint_synchronizer").remote()
    foreign = make(ray_world.TrinitySynchronizer, "trinity_synchronizer").remote()
    rollout = make(ray_world.Rollout, "rollout").remote()
    ranks = [make(ray_world.TrainerRank).remote() for _ in range(world_size)]
    words = (world_size, str(tmp_path), kind, namespace)
    running = [actor.run.remote(rank, *words) for rank, actor in enumerate(ranks)]
    outcomes = ray.get(running, timeout=240)
    expected = outcomes[0]["expected"]

    def same(received: dict[str, torch.Tensor]) -> None:
        assert received.keys() == expected.keys()
        assert all(torch.equal(received[name], tensor) for name, tensor in expected.items())

    assert ray.get(monitor.latest_steps.remote()) == (0, 1)
    assert ray.get(trinity.get_calls.remote()) == [("started",), ("finished", 1, True)]
    for other in ("ours", "trinity"):
        assert (tmp_path / other / "latest_state_dict_iteration.txt").read_text() == "1"
        same(read_state_dict(tmp_path / other / "global_step_1" / "actor"))
    packed, version = ray.get(synchronizer.get_model_state_dict.remote())
    assert version == 1
    same(packed)
    ((state_dict, step),) = ray.get(foreign.get_calls.remote())
    assert step == 2
    same(state_dict)
    same(outcomes[0]["received"])
    for outcome in outcomes:
        assert "uploading step 3: rank 0 failed" in outcome["error"] and "no room" in outcome["error"]
    for actor in (monitor, trinity, synchronizer, foreign, rollout, *ranks):
        ray.kill(actor)


def test_an_object_store_that_is_too_small_is_said_before_the_transfer() -> None:
    from fastsft.weight_sync import fsdp_upload_state_dict
    from weight_sync_parts.modules import make_engine
    from weight_sync_parts.save_world import LOGGER

    synchronizer = ray.remote(Synchronizer).options(num_cpus=0).remote()
    big = torch.nn.Linear(10_000, 2_100, bias=False)
    with pytest.raises(RuntimeError, match=r"the weights have 84000000 bytes, Ray's object store 80000000"):
        fsdp_upload_state_dict(make_engine(big, "plain"), synchronizer, 1, LOGGER)
