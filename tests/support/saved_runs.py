"""Checkpoints of a run that tests copy, and tensors that they compare."""

from __future__ import annotations

from pathlib import Path

import torch

OPTIMIZER = "optimizer-rank-00000-of-00001.safetensors"


def copy(finished: Path, output: Path, *steps: int) -> Path:
    """`output`, with the checkpoints of these steps of the run `finished`."""
    for step in steps:
        target = output / f"checkpoint-{step}"
        target.mkdir(parents=True)
        for path in (finished / f"checkpoint-{step}").iterdir():
            (target / path.name).write_bytes(path.read_bytes())
    return output


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """The same names with the same bits."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
