"""fastsft.weight_sync against the original functions: two FSDP2 ranks and a receiver on gloo, in alternation.

    PYTHONPATH=python:tests/support:benchmarks python benchmarks/bench_weight_sync.py [--pairs 5]

Host: microseconds of processor time a tensor, of a repeated sync with nothing on the wire. Save: seconds
that a call blocks each rank, and until every rank's file is complete (ours also synced to the disk,
checksummed and committed; the original's is not). Broadcast: seconds until rank 0 is done, for many small
tensors and for few large ones, fitted as tensors * per_op + bytes / bandwidth; per_op holds the gather and
both ends. What was received is compared with what was sent.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from baselines.original_weight_sync import Threads, save_state_dict, sync_weight
from fastsft.weight_sync import (
    CheckpointCoordinator,
    WeightGroup,
    WeightReceiver,
    fsdp_save_state_dict,
    fsdp_sync_weight_nccl,
    read_state_dict,
    sync_plan,
)
from harness import Ratio, Run, ratios, write_result
from sync_host_cost import COUNTS, host_cost_us

SHAPES = {"many": (800, 32), "few": (16, 1024)}  # tensors, rows and columns of each
MODES = ("original", "trinity", "vllm_packed", "native")
BUCKET_BYTES = 1 << 24
RANKS = 2
LOGGER = logging.getLogger("bench")


def make_engine(shape: str) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    count, size = SHAPES[shape]
    module = nn.Sequential(*[nn.Linear(size, size, bias=False) for _ in range(count)])
    fully_shard(module, mesh=init_device_mesh("cpu", (RANKS,), mesh_dim_names=("fsdp",)))
    return SimpleNamespace(
        module=module, get_per_tensor_param=lambda: (iter(module.state_dict().items()), None)
    )


def bench_save(engine: Any, folder: str, pairs: int) -> list[dict[str, Any]]:
    """Of this rank: the seconds of each save."""
    threads, coordinator, found = Threads(), CheckpointCoordinator(), []
    for step in range(pairs + 1):
        record = {}
        for side in ("original", "ours"):
            path = f"{folder}/{side}"
            dist.barrier()
            began = time.perf_counter()
            if side == "original":
                save_state_dict(engine.module, path, step, threads)
            else:
                fsdp_save_state_dict(engine, path, step, coordinator, LOGGER)
            blocked = time.perf_counter() - began
            (threads if side == "original" else coordinator).wait_all()
            dist.barrier()
            record[side] = {"blocked": blocked, "durable": time.perf_counter() - began}
        found.append(record)
    if dist.get_rank() == 0:
        saved = read_state_dict(f"{folder}/ours")
        for name, tensor in engine.module.state_dict().items():
            assert torch.equal(saved[name].chunk(RANKS)[0], tensor.to_local()), name
    return found[1:]


def bench_sync(engine: Any, group: Any, shape: str, pairs: int) -> dict[str, list[float]]:
    """Of rank 0: the seconds of each sync, by mode."""
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    for _ in range(pairs + 1):
        for mode in MODES:
            dist.barrier()
            began = time.perf_counter()
            if mode == "original":
                sync_weight(engine.module, None if group is None else group.group)
            else:
                fsdp_sync_weight_nccl(engine, group, mode=mode, bucket_bytes=BUCKET_BYTES, deadline_s=120.0)
            seconds[mode].append(time.perf_counter() - began)
    return {mode: values[1:] for mode, values in seconds.items()}


def trainer(rank: int, folder: str, pairs: int, port: int) -> None:
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    found: dict[str, Any] = {}
    for shape in SHAPES:
        engine = make_engine(shape)
        sums = {name: full.double().sum().item() for name, full in whole(engine)}
        plan = sync_plan(engine)
        if rank == 0:
            torch.save((plan.metadata(), sums), f"{folder}/{shape}.tmp")
            Path(f"{folder}/{shape}.tmp").rename(f"{folder}/{shape}.plan")
        group = WeightGroup(dist.FileStore(f"{folder}/{shape}.weights", 2), 0, 2) if rank == 0 else None
        found[shape] = {"sync": bench_sync(engine, group, shape, pairs)}
        found[shape]["save"] = bench_save(engine, f"{folder}/{shape}", pairs)
    torch.save(found, f"{folder}/rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def whole(engine: Any) -> Any:
    for name, tensor in engine.module.state_dict().items():
        yield name, tensor.full_tensor()


def receiver(folder: str, pairs: int) -> None:
    for shape in SHAPES:
        while not Path(f"{folder}/{shape}.plan").exists():
            time.sleep(0.05)
        metadata, sums = torch.load(f"{folder}/{shape}.plan")
        group = WeightGroup(dist.FileStore(f"{folder}/{shape}.weights", 2), 1, 2)
        loaded: dict[str, torch.Tensor] = {}
        for _ in range(pairs + 1):
            for mode in MODES:
                loaded.clear()
                wire = "trinity" if mode == "original" else mode
                WeightReceiver(
                    group, metadata, loaded.update, mode=wire, bucket_bytes=BUCKET_BYTES, deadline_s=120.0
                ).receive()
                assert {name: t.double().sum().item() for name, t in loaded.items()} == sums, mode


def process(number: int, folder: str, pairs: int, port: int) -> None:
    torch.set_num_threads(1)
    if number < RANKS:
        trainer(number, folder, pairs, port)
    else:
        receiver(folder, pairs)


def fit(seconds: dict[str, float]) -> dict[str, float]:
    """per_op and bandwidth from the two shapes."""
    (many, size_many), (few, size_few) = SHAPES["many"], SHAPES["few"]
    bytes_many, bytes_few = 4 * many * size_many**2, 4 * few * size_few**2
    determinant = many * bytes_few - few * bytes_many
    per_op = (seconds["many"] * bytes_few - seconds["few"] * bytes_many) / determinant
    per_byte = (many * seconds["few"] - few * seconds["many"]) / determinant
    return {"per_op_us": 1e6 * per_op, "bandwidth_mb_s": 1e-6 / per_byte}


def report(folder: str, pairs: int, host: dict[str, Any]) -> None:
    found = [torch.load(f"{folder}/rank{rank}.pt") for rank in range(RANKS)]
    results: dict[str, Ratio] = {}
    for shape in SHAPES:
        times = found[0][shape]["sync"]
        for mode in MODES[1:]:
            name = f"sync {shape} {mode}"
            both = zip(times["original"], times[mode], strict=True)
            results |= ratios([(Run({name: a}), Run({name: b})) for a, b in both])
        for rank, ranks in enumerate(found):
            for metric in ("blocked", "durable"):
                name = f"save {shape} {metric} rank {rank}"
                runs = [
                    (Run({name: r["original"][metric]}), Run({name: r["ours"][metric]}))
                    for r in ranks[shape]["save"]
                ]
                results |= ratios(runs)
    medians = {m: {s: statistics.median(found[0][s]["sync"][m]) for s in SHAPES} for m in MODES}
    fitted = {mode: fit(seconds) for mode, seconds in medians.items()}
    for mode, values in fitted.items():
        print(f"{mode:<12} {values['per_op_us']:8.1f} us a tensor, {values['bandwidth_mb_s']:8.0f} MB/s")
    settings = {
        "pairs": pairs, "shapes": SHAPES, "bucket_bytes": BUCKET_BYTES, "ranks": RANKS, "fit": fitted,
        "seconds": medians, "host": host, "host_tensors": COUNTS,
    }  # fmt: skip
    write_result("weight_sync", results, settings)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=5)
    pairs = parser.parse_args().pairs
    torch.set_num_threads(1)
    host = {mode: host_cost_us(mode, 4 * pairs) for mode in MODES[1:]}
    for mode, cost in host.items():
        print(
            f"{mode:<12} {cost['us_per_tensor']:8.2f} us a tensor of the sender's host, nothing on the wire"
        )
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(process, (folder, pairs, store.port), nprocs=RANKS + 1, start_method="spawn")
        report(folder, pairs, host)


if __name__ == "__main__":
    main()
