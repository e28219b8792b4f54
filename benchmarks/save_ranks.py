"""One rank of bench_save.py: steps with and without a save in flight, by ours, ours waiting, and torch's DCP.

Writes what it timed to the report, on rank 0. With torchrun's variables; see bench_save.py.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import resource
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import numpy as np

from fastsft import _C, saving
from fastsft.checkpoint import saver as checkpoint_saver
from fastsft.model.model_save import ModelForm
from fastsft.ranks import process_group as launcher
from fastsft.ranks.output_directory import file_system_of
from fastsft.runtime.launch import launch
from saving_run import make_trainer

CHUNK = 8 << 20
_BLOCK = 4096  # of a disk


class Steps:
    """Optimizer steps of one size, timed."""

    def __init__(self, engine: Any, tokens: int) -> None:
        generator = np.random.default_rng(launch().rank)
        self.engine, self.rows = engine, _C.TokenDataset()
        self.rows.append(generator.integers(3, 60, tokens).astype(np.int32), [(10, tokens)])

    def one(self) -> float:
        started = time.perf_counter()
        self.engine.begin_step(
            self.rows, [np.zeros(1, np.int64)], [np.full(1, 1e-4)], learning_rate=1e-5, weight_decay=0.0
        )
        self.engine.take_results(all=True)
        return time.perf_counter() - started

    def many(self, count: int) -> list[float]:
        return [self.one() for _ in range(count)]


class Ours:
    """Our saver, with the time of staging and of writing this rank's part beside it."""

    def __init__(self, trainer: Any, folder: Path, behind: bool) -> None:
        trainer.args.async_save = behind
        self.folder, self.saver = folder, saving.CheckpointSaver(trainer)
        self.staging, self.writing, self.number = 0.0, 0.0, 0
        stage = self.saver._stage

        def timed_stage() -> Any:
            started = time.perf_counter()
            part = stage()
            self.staging = time.perf_counter() - started
            return _TimedPart(self, part)

        self.saver._stage = timed_stage  # type: ignore[method-assign]

    def begin(self) -> None:
        self.number += 1
        self.saver.save(self.folder / f"checkpoint-{self.number}")

    def done(self) -> bool:
        self.saver.poll()
        return self.saver._save is None

    def clean(self) -> None:
        if launch().rank == 0:
            shutil.rmtree(self.folder / f"checkpoint-{self.number}", ignore_errors=True)


class _TimedPart:
    def __init__(self, owner: Ours, part: Any) -> None:
        self.owner, self.part = owner, part

    def write(self, directory: str, **options: Any) -> Any:
        started = time.perf_counter()
        result = self.part.write(directory, **options)
        self.owner.writing = time.perf_counter() - started
        return result


class Dcp:
    """torch.distributed.checkpoint.async_save of as many bytes: state, and weights of the model files."""

    def __init__(self, folder: Path, sizes: list[int]) -> None:
        import torch

        self.folder, self.number, self.future = folder, 0, None
        rank = launch().rank
        kinds = ("master", "exp_avg", "exp_avg_sq", "weight")
        self.state = {f"{rank}.{i}.{kind}": torch.randn(n) for i, n in enumerate(sizes) for kind in kinds}

    def begin(self) -> None:
        import torch.distributed as dist
        import torch.distributed.checkpoint as dcp

        self.number += 1
        self.group = getattr(self, "group", None) or dist.new_group(backend="gloo")
        self.future = dcp.async_save(
            self.state, checkpoint_id=str(self.folder / f"dcp-{self.number}"), process_group=self.group
        )

    def done(self) -> bool:
        from fastsft.ranks.exchange import on_any_rank

        assert self.future is not None
        return not on_any_rank(not self.future.done())

    def clean(self) -> None:
        if launch().rank == 0:
            shutil.rmtree(self.folder / f"dcp-{self.number}", ignore_errors=True)


def round_of(side: Any, steps: Steps, count: int) -> dict[str, float]:
    """Steps alone, then a save, then steps until it is done."""
    alone = steps.many(count)
    launcher.barrier()
    started = time.perf_counter()
    side.begin()
    blocked = time.perf_counter() - started
    during: list[float] = []
    flags: list[float] = []
    while True:
        at = time.perf_counter()
        if side.done():
            break
        flags.append(time.perf_counter() - at)
        during.append(steps.one())
    whole = time.perf_counter() - started
    side.clean()
    launcher.barrier()
    alone += steps.many(count)
    mean = statistics.mean(alone)
    return {
        "step": mean,
        "blocked": blocked,
        "staging": getattr(side, "staging", 0.0),
        "writing": getattr(side, "writing", 0.0),
        "whole": whole,
        "steps_during": len(during),
        "inflation": (statistics.mean(during) + statistics.mean(flags)) / mean - 1 if during else 0.0,
        "lost": blocked + sum(during) + sum(flags) - len(during) * mean,
    }


def processor_seconds() -> float:
    """Of all threads of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Disk:
    """The disk by itself, with the files that our writer writes: the ranks' bytes of one common file, and a
    file a rank, both at once, durable at the end. Past the page cache (O_DIRECT) where the file system can.
    """

    def __init__(self, folder: Path, sizes: tuple[int, int]) -> None:
        self._folder, self._rank = folder, launch().rank
        self._sizes = [-(-size // _BLOCK) * _BLOCK for size in sizes]
        self._chunk = mmap.mmap(-1, CHUNK)  # of whole pages, as O_DIRECT wants
        self._chunk.write(os.urandom(CHUNK))
        self.direct = self._takes_direct()

    def _takes_direct(self) -> bool:
        path = self._folder / f"probe-{self._rank}"
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT))
        except OSError:
            return False
        finally:
            path.unlink(missing_ok=True)
        return True

    def seconds(self, *, direct: bool) -> float:
        """Until this rank's bytes are durable; all ranks write at the same time."""
        common, own = self._folder / "disk-common", self._folder / f"disk-{self._rank}"
        work = [(common, self._rank * self._sizes[0], self._sizes[0]), (own, 0, self._sizes[1])]
        launcher.barrier()
        started = time.perf_counter()
        with ThreadPoolExecutor(len(work)) as pool:
            for _ in pool.map(lambda item: self._write(*item, direct=direct), work):
                pass
        seconds = time.perf_counter() - started
        launcher.barrier()
        own.unlink()
        if self._rank == 0:
            common.unlink()
        launcher.barrier()
        return seconds

    def _write(self, path: Path, offset: int, size: int, *, direct: bool) -> None:
        flags = os.O_WRONLY | os.O_CREAT | (os.O_DIRECT if direct else 0)
        descriptor, end = os.open(path, flags, 0o644), offset + size
        with memoryview(self._chunk) as chunk:
            while offset < end:
                offset += os.pwrite(descriptor, chunk[: min(CHUNK, end - offset)], offset)
        os.fsync(descriptor)
        os.close(descriptor)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("report", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=512)
    options = parser.parse_args()
    trainer = make_trainer(options.model, options.folder, fsdp="full_shard", save_total_limit=1)
    steps = Steps(trainer.engine, options.tokens)
    steps.many(2)
    ranks = launch().world_size
    size = checkpoint_saver.needed_bytes(trainer) // ranks
    model_size = ModelForm.of(trainer).bytes(trainer.engine) // ranks
    own_disk = Disk(options.folder, (model_size, size - model_size))
    sides: dict[str, Callable[[], Any]] = {
        "ours": lambda: Ours(trainer, options.folder, behind=True),
        "ours waiting": lambda: Ours(trainer, options.folder, behind=False),
        "dcp async": lambda: Dcp(options.folder, [n // 2 for n in trainer.engine.unit_sizes]),
    }
    made = {name: make() for name, make in sides.items()}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    disk: dict[str, list[float]] = {"buffered": []} | ({"direct": []} if own_disk.direct else {})
    idle, work = [], []
    for number in range(options.rounds + 1):
        for name, side in made.items():
            result = round_of(side, steps, options.steps)
            if number:  # the first one makes buffers and threads
                found[name].append(result)
        for kind, seconds in disk.items():
            seconds.append(own_disk.seconds(direct=kind == "direct"))
        ours = made["ours"]
        before = processor_seconds()
        ours.begin()  # nothing else runs: how fast is our writer by itself
        ours.saver.wait()
        work.append(processor_seconds() - before)
        idle.append(ours.writing)
        ours.clean()
    report = {
        "bytes_of_a_rank": size, "disk_seconds": disk, "writer_seconds": idle, "processor_seconds": work,
        "rounds": found, "file_system": file_system_of(options.folder),
    }  # fmt: skip
    if launch().rank == 0:
        options.report.write_text(json.dumps(report))
    launcher.barrier()
    launcher.leave()


if __name__ == "__main__":
    main()
