"""Facts that all ranks of a run must have settled alike before it begins, those that may differ, and why."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import fastsft
from fastsft.ranks.comparison import Facts

if TYPE_CHECKING:
    import torch

# Every field of the argument classes is compared but these.
RANK_LOCAL = {
    "local_rank": "the place of the rank itself",
    "model_name_or_path": "machines may have copies in other places: what they hold is compared",
    "cache_dir": "the same, of models from the hub",
    "data_path": "the same",
    "eval_data_path": "the same",
    "data_cache": "a directory of each machine; whether there is one is compared",
    "report_bad": "rank 0 writes it",
    "report_to": "rank 0 alone reports to trackers",
    "logging_dir": "rank 0 writes it; its default has the time and the machine's name",
    "hub_token": "rank 0 uploads; a secret is not sent to other ranks",
    "push_to_hub_token": "the same",
    "log_level": "what each rank prints",
    "log_level_replica": "what each rank prints",
    "disable_tqdm": "what each rank prints",
    "plot_loss": "rank 0 draws",
    "profile": "each rank may write a timeline of its own, or none",
    "profile_steps": "the same",
}  # fmt: skip

# They make the orders of rows, tokens, and what is read of a model's directory.
_LIBRARIES = ("transformers", "tokenizers", "sentencepiece", "numpy", "safetensors", "accelerate", "datasets")

# Variables that change results, or what ranks send each other. Threads (OMP_NUM_THREADS) do neither.
_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_NCCL_USE_COMM_NONBLOCKING", "NCCL_ALGO", "NCCL_PROTO", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA",
    "ATEN_CPU_CAPABILITY", "ONEDNN_DEFAULT_FPMATH_MODE",
)  # fmt: skip


class SettledArguments(Protocol):
    """TrainingArguments, as they are compared."""

    @property
    def save_on_each_node(self) -> bool: ...
    @property
    def output_dir(self) -> str | os.PathLike[str] | None: ...
    @property
    def device(self) -> torch.device: ...
    def settled_values(self) -> dict[str, Any]: ...


def start_facts(args: SettledArguments, *others: object) -> Facts:
    """Versions, switches and every argument; others: further argument classes."""
    arguments: dict[str, object] = {}
    for given in others:
        assert dataclasses.is_dataclass(given)
        arguments |= {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
    arguments |= args.settled_values()
    named = {f"--{name}": value for name, value in arguments.items() if name not in RANK_LOCAL}
    if args.save_on_each_node:
        del named["--output_dir"]  # of each machine's own disk
    else:
        named["--output_dir"] = os.path.abspath(str(args.output_dir))
    plan = getattr(args, "deepspeed_plan", None)
    device = str(args.device).partition(":")[0]
    return {**versions(), **named, "the content of --deepspeed": plan, "device": device, **_switches()}


def versions() -> Facts:
    """Return versions of fastsft, its code, torch, Python and the libraries that read data and models."""
    import torch

    return {
        "version of fastsft": fastsft.__version__,
        "version of torch": str(torch.__version__),
        **{f"version of {name}": _installed(name) for name in _LIBRARIES},
        "version of Python": ".".join(platform.python_version_tuple()[:2]),
        "build of fastsft (checksum of its code)": code_checksum(),
    }


def _installed(name: str) -> str | None:
    """Return the version of an installed package, without importing it."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@cache
def code_checksum() -> str:
    """CRC-32C over the native core and the Python files of fastsft."""
    from fastsft import _C

    folder = Path(__file__).parents[1]
    files = [Path(str(_C.__file__)), *sorted(folder.rglob("*.py"))]
    parts = [f"{path.name} {_C.digest_file(str(path)).crc32c:08x}" for path in files]
    return f"{_C.crc32c(' '.join(parts).encode()):08x}"


def _switches() -> Facts:
    """Return switches of torch and environment variables that change results."""
    import torch

    switches: dict[str, object] = {
        "torch.use_deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "torch.get_float32_matmul_precision": torch.get_float32_matmul_precision(),
        "torch.backends.cuda.matmul.allow_tf32": torch.backends.cuda.matmul.allow_tf32,
    }
    environ: Mapping[str, str] = os.environ
    return {**switches, **{f"variable {name}": environ.get(name) for name in _VARIABLES}}
