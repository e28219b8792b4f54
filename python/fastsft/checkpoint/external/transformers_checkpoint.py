"""Checkpoints of transformers' Trainer: the search for their files, and reading of random states."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastsft import _C
from fastsft.checkpoint.run_identity import STATE_NAME
from fastsft.model.weights import has_safetensors
from fastsft.runtime.plain_pickle import Inert, Maker, Names
from fastsft.runtime.random_state import RandomState
from fastsft.runtime.regular_files import file_inside
from fastsft.runtime.torch_archive import read_archive

_NUMBERED, _NAMED, _SHARDED = "optimizer.pt", "optimizer.bin", "optimizer_0"
FULL_WEIGHTS, SHARDED_WEIGHTS = "pytorch_model_fsdp.bin", "pytorch_model_fsdp_0"
_PICKLED_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_METADATA = ".metadata"
# Files that fastsft cannot resume from: (pattern, kind of file, advice to the user).
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
    """True if the directory has trainer_state.json, and no file that only fastsft writes."""
    path = Path(directory)
    has_state = (path / "trainer_state.json").is_file()
    return has_state and not (path / STATE_NAME).exists() and not _C.holds_manifest(str(path))


@dataclass(frozen=True)
class TransformersCheckpoint:
    """The paths in a transformers checkpoint.

    optimizer: a file with optimizer state by parameter number or name, or a folder of
    torch.distributed.checkpoint. weights: a file or folder that FSDP saved; None if `directory` has the
    weight files of a model directory.
    """

    directory: Path
    optimizer: Path
    weights: Path | None
    scheduler: Path | None

    @classmethod
    def of(cls, directory: str | Path) -> TransformersCheckpoint:
        """Find the paths in a checkpoint. ValueError, with advice, if the checkpoint cannot be resumed."""
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
        """File with the state of torch.amp.GradScaler; None unless the run used fp16."""
        return file_inside(self.directory, "scaler.pt")


def _refuse_foreign(path: Path) -> None:
    for pattern, whose, way_out in _FOREIGN:
        matches = sorted(path.glob(pattern))
        if matches:
            raise ValueError(f"{path}: cannot be resumed: {matches[0].name} is {whose}; {way_out}")


def _folder(path: Path, name: str) -> Path | None:
    return path / name if (path / name / _METADATA).is_file() else None


def _weights(path: Path) -> Path | None:
    if has_safetensors(path) or any((path / name).is_file() for name in _PICKLED_WEIGHTS):
        return None
    weights = file_inside(path, FULL_WEIGHTS) or _folder(path, SHARDED_WEIGHTS)
    if weights is None:
        raise ValueError(
            f"{path}: expected weights (model.safetensors, {_PICKLED_WEIGHTS[0]}, {FULL_WEIGHTS} or "
            f"{SHARDED_WEIGHTS}/), found none"
        )
    return weights


def load_plain(path: Path, what: str, names: Names | None = None) -> object:
    """Read a torch.save file of tensors, numbers, strings and containers, without running code from it.

    Tensors are memory-mapped. what: phrase for the expected content, for messages. names: as in
    `read_archive`. ValueError for files with other objects.
    """
    try:
        return read_archive(path, names)
    except ValueError as error:
        raise ValueError(f"{path}: expected {what}, got a file that is not plain data ({error})") from error


def _number(path: Path) -> int:
    number = path.name.rpartition("-")[2]
    return int(number) if number.isascii() and number.isdigit() else -1


_WHAT = "the random states that transformers saved"


def random_state_file(directory: Path, rank: int, world_size: int) -> Path | None:
    """Return the file with the random states of `rank`; None if the files are for another world size."""
    files = sorted(directory.glob("rng_state*.pth"))
    alone = directory / "rng_state.pth"
    expected = [alone] if world_size == 1 else [directory / f"rng_state_{r}.pth" for r in range(world_size)]
    return expected[rank] if set(files) == set(expected) else None


def read_foreign_states(path: Path) -> RandomState:
    """Read the random states of Python, numpy and torch. ValueError if the file holds anything else."""
    states = load_plain(path, _WHAT, _NUMPY.get)
    try:
        return _checked(states)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{path}: expected {_WHAT} ({type(error).__name__}: {error})") from error


def _checked(states: Any) -> RandomState:
    """Return the random states after they were set on new generators as a trial.

    The trial raises errors for invalid states, and leaves the global generators unchanged.
    """
    import random

    version, internal, gauss = states["python"]
    states_ = RandomState((version, tuple(internal), gauss), _numpy_state(states["numpy"]), states["cpu"])
    random.Random().setstate(states_.python)
    np.random.RandomState().set_state(states_.numpy)
    torch.Generator().set_state(states_.torch)
    return states_


def _numpy_state(state: Any) -> tuple[Any, ...]:
    name, keys, *rest = state
    return (name, keys.values(), *rest)


class _Dtype(Inert):
    """A substitute for numpy.dtype, constructed with arguments such as ("u4", False, True)."""


class _Array(Inert):
    """A substitute for numpy.ndarray. `arguments` ends with (version, shape, dtype, is_fortran, bytes)."""

    def values(self) -> np.ndarray[Any, np.dtype[Any]]:
        state: Any = self.arguments[-1]
        _, shape, kind, _, content = state
        if kind.arguments[0] not in ("u4", "u8", "i4", "i8") or not isinstance(content, bytes):
            raise ValueError("expected an array of integers")
        return np.frombuffer(content, dtype=f"<{kind.arguments[0]}").reshape(shape)


# The function that makes an array has different module names in numpy 1 and numpy 2.
_NUMPY = {
    "numpy.ndarray": _Array,
    "numpy.dtype": Maker(_Dtype),
    "numpy.core.multiarray._reconstruct": Maker(_Array),
    "numpy._core.multiarray._reconstruct": Maker(_Array),
}
