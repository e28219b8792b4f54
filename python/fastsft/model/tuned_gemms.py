"""`--tune_gemm`: the algorithms of matrix products on a GPU, measured before the first step (docs/gpu.md)."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from fastsft.ranks.process_group import gather_objects

if TYPE_CHECKING:
    from fastsft import _C
    from fastsft.planning.memory_plan import Workload

_FEWEST = 16  # tokens of a micro-batch whose products are worth measuring


class Computes(Protocol):
    """A model of transformers (generic) or of the engine's own (native), and its vocabulary."""

    engine_kind: str

    def vocab_size(self) -> int:
        """Rows of its embedding."""


def forget_tuned_gemms() -> None:
    """cuBLASLt's first proposals from here on, in this process."""
    from fastsft import _C

    _C.set_tuned_gemms("[]")


def tuned_products(device: torch.device) -> dict[str, str] | None:
    """This process's algorithms, for `restore_tuned_gemms` in another; None: first proposals."""
    from fastsft import _C

    products = _C.tuned_gemms()
    return None if products == "[]" else {"library": library(device), "products": products}


def restore_tuned_gemms(saved: dict[str, str], device: torch.device) -> str | None:
    """Run products by those of another process; why not, where a rank has another GPU or cuBLASLt.

    Collective: all ranks take them, or none.
    """
    from fastsft import _C

    here = gather_objects(library(device) if device.type == "cuda" else "a CPU")
    other = next((each for each in here if each != saved["library"]), None)
    if other is not None:
        return f"they were measured by {saved['library']}, and this is {other}"
    _C.set_tuned_gemms(saved["products"])
    return None


def library(device: torch.device) -> str:
    """The release of cuBLASLt and the GPU, to which algorithms mean something."""
    version = torch.ops.fastsft.gemm_library_version(torch.empty(0, device=device))
    return f"cuBLASLt {version} on {torch.cuda.get_device_name(device)}"


def tune_gemms(model: Computes, engine: _C.Engine, device: torch.device, work: Workload) -> str:
    """Measure the products of micro-batches up to those that `work` has, unless they are; a line about them.

    Collective: each rank measures, and the first rank's algorithms are taken by all.
    """
    from fastsft import _C

    if model.engine_kind != "native" or device.type != "cuda":
        where = "a CPU" if device.type != "cuda" else "the generic engine, whose products are torch's"
        return f"--tune_gemm True has no effect on {where}"
    if all(gather_objects(_C.tuned_gemms() != "[]")):
        return "matrix products run by the checkpoint's algorithms"
    forget_tuned_gemms()
    sizes = sizes_to_tune(work.tokens)
    for tokens in sizes:
        dataset = micro_batch(work, tokens, model.vocab_size())
        rows = np.arange(len(dataset))
        share = 1 / max(1, int(dataset.target_counts().sum()))
        engine.tune_gemms(dataset, rows, np.full(len(rows), share))
    _C.set_tuned_gemms(gather_objects(_C.tuned_gemms())[0])
    return summary(json.loads(_C.tuned_gemms()), sizes)


def sizes_to_tune(most: int) -> list[int]:
    """Tokens of micro-batches, so that each from `most` down to a sixteenth of it is within an eighth of one.

    An algorithm that was measured at n tokens serves 7/8 n to 9/8 n (csrc/ops/gemm/tuned_gemms.h).
    """
    sizes, least = [most], max(most / 16, 2.0)
    while most >= _FEWEST and sizes[-1] * 7 / 8 > least:
        sizes.append(min(math.ceil(sizes[-1] * 7 / 9), sizes[-1] - 1))
    return sizes if most >= _FEWEST else []


def micro_batch(work: Workload, tokens: int, vocab_size: int) -> _C.TokenDataset:
    """Random conversations of `tokens` tokens, as long as those of `work` and with its share of labels."""
    from fastsft import _C

    random, dataset = np.random.default_rng(0), _C.TokenDataset()
    longest = max(2, min(work.longest, tokens))
    full, rest = divmod(tokens, longest)
    for length in [longest] * full + [rest] * (rest > 1):
        learned = min(length - 1, work.labels * length // work.tokens)
        ids = random.integers(0, vocab_size, length).astype(np.int32)
        dataset.append(ids, [(length - learned, length)] if learned else [])
    return dataset


def summary(products: list[dict[str, Any]], sizes: list[int]) -> str:
    """A line: products measured, and what it brought."""
    if not products:
        return "matrix products: none to measure"
    gains = [product["gain"] for product in products if product["gain"] > 1]
    measured = (
        f"matrix products: {len(products)} measured in micro-batches of {sizes[-1]:,} to {sizes[0]:,} tokens"
    )
    if not gains:
        return f"{measured}; cuBLASLt's first proposals are the fastest"
    return (
        f"{measured}; {len(gains)} run by another algorithm than cuBLASLt's first proposal, "
        f"{min(gains):.2f} to {max(gains):.2f} times as fast"
    )
