"""Memory of rank 0 while a wrapped model is saved: trainer_save_model_safe beside FastChat's function.

usage: python benchmarks/foreign_save.py [--hidden 1536] [--layers 24] [--ranks 2] [--pairs 2]

A real transformers.Trainer whose Llama PyTorch's FSDP1 (then FSDP2) shards over gloo ranks. Each side runs in
fresh processes; the kernel's peak of resident memory is reset before the save, and what counts is how far
it rises above what the rank held. FastChat's function knows no FSDP2: there torch's gathered full state
dict, saved by the trainer, stands for it. Both sides' files must be equal.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import shutil
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import torch
import torch.distributed as dist
from safetensors import safe_open

import foreign_run
from harness import Run, UnequalResultsError, paired, write_result
from ranks import run_ranks


def model_of(hidden: int, layers: int) -> Any:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=8192, hidden_size=hidden, intermediate_size=hidden * 8 // 3 // 64 * 64,
        num_hidden_layers=layers, num_attention_heads=hidden // 64, num_key_value_heads=hidden // 64,
        tie_word_embeddings=False, use_cache=False,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cpu"):
        return transformers.LlamaForCausalLM(config)


def status(field: str) -> int:
    """Bytes, of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def save(groups: Any, side: str, wrap: str, hidden: int, layers: int, folder: str) -> dict[str, float]:
    """What this rank needs: bytes held before, peak above that, the largest unit, seconds."""
    foreign_run._as_rank()
    model = foreign_run.WRAPS[wrap](model_of(hidden, layers))
    trainer = foreign_run.make_trainer(model, Path(folder) / side)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    begin, used = time.perf_counter(), time.process_time()
    if side == "ours":
        foreign_run.saving.trainer_save_model_safe(trainer)
    else:
        foreign_run.save_by_judge(trainer, wrap, Path(folder) / side)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - used
    rise = status("VmHWM") - before
    dist.barrier()
    return {"before": before, "rise": rise, "seconds": seconds, "cpu": cpu, "unit": largest_unit(model)}


def largest_unit(model: Any) -> int:
    """Bytes of the largest decoder layer, or of embedding, norm and head together."""
    config = foreign_run.unwrapped(model).config
    ends = (2 * config.vocab_size + 1) * config.hidden_size
    layer = (
        4 * config.hidden_size**2 + 3 * config.hidden_size * config.intermediate_size + 2 * config.hidden_size
    )
    return 4 * max(ends, layer)


def equal_files(left: str, right: str) -> None:
    """UnequalResultsError when two directories do not hold the same tensors."""
    files = [Path(folder) / "model.safetensors" for folder in (left, right)]
    with safe_open(files[0], "pt") as one, safe_open(files[1], "pt") as other:
        if set(one.keys()) != set(other.keys()):
            raise UnequalResultsError("other names")
        for name in one.keys():  # noqa: SIM118
            if not torch.equal(one.get_tensor(name), other.get_tensor(name)):
                raise UnequalResultsError(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=2)
    args = parser.parse_args()
    results: dict[str, Any] = {}
    for wrap in ("fsdp1", "fsdp2"):
        with tempfile.TemporaryDirectory() as folder:
            facts: dict[str, float] = {}

            def run(
                side: str, wrap: str = wrap, folder: str = folder, facts: dict[str, float] = facts
            ) -> Run:
                shutil.rmtree(Path(folder) / side, ignore_errors=True)
                ranks = run_ranks(args.ranks, save, side, wrap, args.hidden, args.layers, folder)
                size = (Path(folder) / side / "model.safetensors").stat().st_size
                facts.update(
                    model_bytes=size, largest_unit=ranks[0]["unit"], held_by_rank_0=ranks[0]["before"]
                )
                metrics = {name: ranks[0][name] for name in ("rise", "seconds", "cpu")}
                metrics["rise_of_other_ranks"] = max(rank["rise"] for rank in ranks[1:])
                return Run(metrics, str(Path(folder) / side))

            ratios = paired(
                lambda: run("fastchat"), lambda: run("ours"), pairs=args.pairs, warm_up=0, check=equal_files
            )
            results[wrap] = {**facts, **{name: asdict(ratio) for name, ratio in ratios.items()}}
            rise = ratios["rise"]
            print(
                f"{wrap}: model {facts['model_bytes'] / 1e6:.0f} MB, "
                f"largest unit {facts['largest_unit'] / 1e6:.0f} MB; "
                f"rank 0 rises by {rise.ours / 1e6:.0f} MB, the other way by {rise.baseline / 1e6:.0f} MB"
            )
    write_result("foreign_save", {}, {"arguments": vars(args), "wraps": results})


if __name__ == "__main__":
    main()
