"""`--tune_gemm`: the algorithms of matrix products on a GPU, measured before the first step (docs/gpu.md)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from fastsft.ranks.process_group import gather_objects

if TYPE_CHECKING:
    from fastsft import _C
    from fastsft.planning.memory_plan import Workload


class Computes(Protocol):
    """A model of transformers (generic) or of the engine's own (native), and its vocabulary."""

    engine_kind: str

    def vocab_size(self) -> int:
        """Rows of its embedding."""


def forget_tuned_products() -> None:
    """cuBLASLt's first proposals from here on, in this process."""
    from fastsft import _C

    _C.set_tuned_gemms("[]")


def tuned_products(device: torch.device) -> dict[str, str] | None:
    """This process's algorithms, for `keep_tuned_products` in another; None: first proposals."""
    from fastsft import _C

    products = _C.tuned_gemms()
    return None if products == "[]" else {"library": library(device), "products": products}


def keep_tuned_products(saved: dict[str, str], device: torch.device) -> str | None:
    """Run products by those of another process; why not, if its GPU or cuBLASLt is another one."""
    from fastsft import _C

    if device.type != "cuda":
        return f"they were measured by {saved['library']}, and this is a CPU"
    if saved["library"] != library(device):
        return f"they were measured by {saved['library']}, and this is {library(device)}"
    _C.set_tuned_gemms(saved["products"])
    return None


def library(device: torch.device) -> str:
    """The release of cuBLASLt and the GPU, to which algorithms mean something."""
    version = torch.ops.fastsft.gemm_library_version(torch.empty(0, device=device))
    return f"cuBLASLt {version} on {torch.cuda.get_device_name(device)}"


def tune_products(model: Computes, engine: _C.Engine, device: torch.device, work: Workload) -> str:
    """Measure the products of a micro-batch as `work` has it at most, unless they are; a line about them.

    Collective: each rank measures, and the first rank's algorithms are taken by all.
    """
    from fastsft import _C

    if model.engine_kind != "native" or device.type != "cuda":
        where = "a CPU" if device.type != "cuda" else "the generic engine, whose products are torch's"
        return f"--tune_gemm True has no effect on {where}"
    if _C.tuned_gemms() != "[]":
        return "matrix products run by the checkpoint's algorithms"
    dataset = full_micro_batch(work, model.vocab_size())
    rows = np.arange(len(dataset))
    engine.tune_gemms(dataset, rows, np.full(len(rows), 1 / max(1, int(dataset.target_counts().sum()))))
    _C.set_tuned_gemms(gather_objects(_C.tuned_gemms())[0])
    return summary(json.loads(_C.tuned_gemms()))


def full_micro_batch(work: Workload, vocab_size: int) -> _C.TokenDataset:
    """Random conversations of up to `work.longest` tokens; tokens and labels together as `work` has them."""
    from fastsft import _C

    random, dataset = np.random.default_rng(0), _C.TokenDataset()
    full, rest = divmod(work.tokens, work.longest)
    for length in [work.longest] * full + [rest] * (rest > 1):
        learned = min(length - 1, work.labels * length // work.tokens)
        ids = random.integers(0, vocab_size, length).astype(np.int32)
        dataset.append(ids, [(length - learned, length)] if learned else [])
    return dataset


def summary(products: list[dict[str, Any]]) -> str:
    """A line: products measured, and what it brought."""
    gains = [product["gain"] for product in products if product["gain"] > 1]
    if not gains:
        return f"matrix products: {len(products)} measured, cuBLASLt's first proposals are the fastest"
    return (
        f"matrix products: {len(products)} measured, {len(gains)} run by another algorithm than cuBLASLt's "
        f"first proposal, {min(gains):.2f} to {max(gains):.2f} times as fast"
    )
