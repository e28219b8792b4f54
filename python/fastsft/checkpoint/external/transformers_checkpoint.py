"""Checkpoints that transformers' Trainer wrote: which file holds what, and which cannot be resumed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fastsft import _C
from fastsft.checkpoint.run_identity import STATE_NAME
from fastsft.model.weights import has_safetensors
from fastsft.runtime.plain_pickle import Names
from fastsft.runtime.regular_files import file_inside
from fastsft.runtime.torch_archive import read_archive

_NUMBERED, _NAMED, _SHARDED = "optimizer.pt", "optimizer.bin", "optimizer_0"
FULL_WEIGHTS, SHARDED_WEIGHTS = "pytorch_model_fsdp.bin", "pytorch_model_fsdp_0"
_PICKLED_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_METADATA = ".metadata"
# What only the program that wrote it can read: pattern of a file, whose it is, the way out.
_TRAIN_FROM = "then train from those weights with --model_name_or_path"
_FOREIGN = (
    ("zero_to_fp32.py", "DeepSpeed's state", f"make weights of it with its zero_to_fp32.py, {_TRAIN_FROM}"),
    ("global_step*", "DeepSpeed's state", f"make weights of it with DeepSpeed's zero_to_fp32, {_TRAIN_FROM}"),
    ("adapter_config.json", "peft's adapters", "go on with transformers, or begin again with train_lora"),
    ("optimizer_0_rank*.bin", "FSDP's state in a file of each rank", f"consolidate it, {_TRAIN_FROM}"),
    ("rank*-of-*-optimizer.pt", "XLA's state in a file of each rank", f"consolidate it, {_TRAIN_FROM}"),
    ("optimizer.pt_*", "SageMaker's partial state", f"consolidate it, {_TRAIN_FROM}"),
)  # fmt: skip


def is_transformers_checkpoint(directory: str | Path) -> bool:
    """True for a directory with trainer_state.json in which fastsft has written nothing of its own."""
    path = Path(directory)
    has_state = (path / "trainer_state.json").is_file()
    return has_state and not (path / STATE_NAME).exists() and not _C.holds_manifest(str(path))


@dataclass(frozen=True)
class TransformersCheckpoint:
    """The parts of one. optimizer: a file by numbers or names, or a folder of torch.distributed.checkpoint.

    weights: None where the directory is a model directory; else a file or a folder of FSDP. scheduler: None
    where there is none.
    """

    directory: Path
    optimizer: Path
    weights: Path | None
    scheduler: Path | None

    @classmethod
    def of(cls, directory: str | Path) -> TransformersCheckpoint:
        """ValueError, with the way out, for one that cannot be resumed."""
        path = Path(directory)
        _refuse_foreign(path)
        optimizer = file_inside(path, _NUMBERED) or file_inside(path, _NAMED) or _folder(path, _SHARDED)
        if optimizer is None and (inside := sorted(path.glob("checkpoint-*"), key=_number)):
            raise ValueError(
                f"{path} is the output directory of a run; name a checkpoint in it ({inside[-1]}), or give "
                "it as --output_dir with --resume_from_checkpoint True"
            )
        if optimizer is None:
            raise ValueError(
                f"{path}: expected the optimizer's state of a transformers checkpoint ({_NUMBERED}, {_NAMED} "
                f"or {_SHARDED}/), found none: it holds a model only; train from it with --model_name_or_path"
            )
        return cls(path, optimizer, _weights(path), file_inside(path, "scheduler.pt"))

    @property
    def scaler(self) -> Path | None:
        """The state of torch.amp.GradScaler, which runs in fp16 have."""
        return file_inside(self.directory, "scaler.pt")


def _refuse_foreign(path: Path) -> None:
    for pattern, whose, way_out in _FOREIGN:
        found = sorted(path.glob(pattern))
        if found:
            raise ValueError(f"{path}: cannot be resumed: {found[0].name} is {whose}; {way_out}")


def _folder(path: Path, name: str) -> Path | None:
    return path / name if (path / name / _METADATA).is_file() else None


def _weights(path: Path) -> Path | None:
    if has_safetensors(path) or any((path / name).is_file() for name in _PICKLED_WEIGHTS):
        return None
    found = file_inside(path, FULL_WEIGHTS) or _folder(path, SHARDED_WEIGHTS)
    if found is None:
        raise ValueError(
            f"{path}: expected weights (model.safetensors, {_PICKLED_WEIGHTS[0]}, {FULL_WEIGHTS} or "
            f"{SHARDED_WEIGHTS}/), found none"
        )
    return found


def load_plain(path: Path, what: str, names: Names | None = None) -> object:
    """Read a file of torch.save: mapped tensors, numbers, texts and containers; no code runs.

    what: the expected content, for messages. names: as of `read_archive`. ValueError for anything else.
    """
    try:
        return read_archive(path, names)
    except ValueError as error:
        raise ValueError(f"{path}: expected {what}, got a file that is not plain data ({error})") from error


def _number(path: Path) -> int:
    number = path.name.rpartition("-")[2]
    return int(number) if number.isascii() and number.isdigit() else -1
