"""Peak memory of saving a sharded model, beside FastChat's way under PyTorch's FSDP1.

    python benchmarks/save_memory.py [--ranks 2] [--hidden 1024] [--layers 12]

The same Llama on gloo ranks: ours trains a step with full_shard and saves by byte ranges (`parallel`) and
through rank 0 (`stream`); FastChat gathers the full state dict on the CPU of rank 0, without a step before.
Bytes of resident memory above what the process had before the model was made; `held`: before the save,
`peak`: in it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import RESULTS, hardware, versions
from loopback_ranks import run_program

ROOT = Path(__file__).parents[1]


def resident(field: str) -> int:
    """VmRSS or VmHWM in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def measured(save: Any, base: int) -> dict[str, int]:
    """Held before and at most while `save` runs; the high-water mark is set back first."""
    held = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    save()
    return {"held": held - base, "peak": resident("VmHWM") - base}


def ours(model: Path, folder: Path, mode: str) -> dict[str, Any]:
    from fastsft import _C, saving
    from fastsft.ranks import process_group as launcher
    from fastsft.ranks.output_directory import file_system_of
    from fastsft.runtime.launch import launch
    from saving_run import make_trainer
    from tiny_models import train

    launcher.join(600)
    _C.TokenDataset()
    base = resident("VmRSS")
    trainer = make_trainer(model, folder, fsdp="full_shard", save_mode=mode)
    train(trainer.engine, 1)
    found = measured(lambda: saving.trainer_save_model_safe(trainer), base)
    unit = 4 * max(trainer.engine.unit_sizes)
    where = {"rank": launch().rank, "unit": unit, "file_system": file_system_of(folder)}
    launcher.barrier()
    launcher.leave()
    return {**found, **where}


def fastchat(model: Path, folder: Path) -> dict[str, Any]:
    """FastChat's trainer_save_model_safe: FULL_STATE_DICT, offloaded to the CPU, on rank 0 only."""
    import functools

    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import FullStateDictConfig, StateDictType
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp._flat_param import FlatParamHandle
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
    from transformers import AutoModelForCausalLM
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    dist.init_process_group("gloo")
    base = resident("VmRSS")
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={LlamaDecoderLayer})
    plain = AutoModelForCausalLM.from_pretrained(model)
    wrapped = FSDP(plain, auto_wrap_policy=policy, device_id=torch.device("cpu"))

    # torch 2.11 frees a unit that is on the CPU already.
    FlatParamHandle.to_cpu = contextlib.nullcontext

    def save() -> None:
        full = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
        with FSDP.state_dict_type(wrapped, StateDictType.FULL_STATE_DICT, full):
            state = wrapped.state_dict()
            if dist.get_rank() == 0:
                plain.save_pretrained(folder, state_dict=state)

    found = measured(save, base)
    dist.barrier()
    rank = dist.get_rank()
    dist.destroy_process_group()
    return {**found, "rank": rank}


def run_ranks(kind: str, model: Path, folder: Path, ranks: int) -> list[dict[str, Any]]:
    outputs = run_program([__file__, "--child", kind, str(model), str(folder)], ranks)
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        kind, model, folder = sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
        result = fastchat(model, folder) if kind == "fastchat" else ours(model, folder, kind)
        print(json.dumps(result), flush=True)
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args()
    from bench_save import write_model

    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / "model"
        parameters = write_model(model, options)
        found = {}
        for kind in ("parallel", "stream", "fastchat"):
            folder = Path(scratch) / kind
            folder.mkdir()
            found[kind] = run_ranks(kind, model, folder, options.ranks)
    unit = found["parallel"][0]["unit"]
    most = {
        kind: {
            "held": max(item["held"] for item in ranks),
            "peak": max(item["peak"] for item in ranks),
            "peak_beside_held_and_unit": max(item["peak"] / (item["held"] + unit) for item in ranks),
        }
        for kind, ranks in found.items()
    }
    record = {
        "name": "save_memory", "parameters": parameters, "model_bytes": 4 * parameters, "unit_bytes": unit,
        "ranks": options.ranks, "most_of_a_rank": most, "each_rank": found,
        "command": " ".join(["python", *sys.argv]), "versions": versions(("fastsft", "torch")),
        "hardware": hardware(), "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }  # fmt: skip
    (RESULTS / "save_memory.json").write_text(json.dumps(record, indent=1) + "\n")
    print(
        json.dumps({name: record[name] for name in ("model_bytes", "unit_bytes", "most_of_a_rank")}, indent=1)
    )


if __name__ == "__main__":
    main()
