"""Measures GEMM algorithms on a GPU before the first step (`--tune_gemm`, docs/gpu.md)."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fastsft.ranks.process_group import gather_objects

if TYPE_CHECKING:
    from fastsft import _C
    from fastsft.model.causal_lm import CausalLM
    from fastsft.planning.memory_plan import BatchShape

_LEAST_TOKENS = 16  # fewest tokens in a micro-batch that is worth measuring


def forget_tuned_gemms() -> None:
    """Make this process use the algorithms that cuBLASLt proposes first, as before any measurement."""
    from fastsft import _C

    _C.set_tuned_gemms("[]")


def tuned_products(device: torch.device) -> dict[str, str] | None:
    """Return this process's measured algorithms, to save them in a checkpoint; None without any."""
    from fastsft import _C

    gemms = _C.tuned_gemms()
    return None if gemms == "[]" else {"library": library(device), "products": gemms}


def restore_tuned_gemms(saved: dict[str, str], device: torch.device) -> str | None:
    """Use a checkpoint's algorithms on all ranks. Collective.

    This needs the measurement's GPU and cuBLASLt release on all ranks. Otherwise, no rank uses them,
    and the reason is returned.
    """
    from fastsft import _C

    libraries = gather_objects(library(device) if device.type == "cuda" else "a CPU")
    other = next((name for name in libraries if name != saved["library"]), None)
    if other is not None:
        return f"they were measured by {saved['library']}, and this is {other}"
    _C.set_tuned_gemms(saved["products"])
    return None


def library(device: torch.device) -> str:
    """Return cuBLASLt's release and the GPU's name."""
    version = torch.ops.fastsft.gemm_library_version(torch.empty(0, device=device))
    return f"cuBLASLt {version} on {torch.cuda.get_device_name(device)}"


def tune_gemms(
    model: CausalLM, engine: _C.Engine, device: torch.device, work: BatchShape, context_ranks: int = 1
) -> str:
    """Find the fastest cuBLASLt algorithms for micro-batches with up to `work.tokens` tokens. Collective.

    Each rank measures, and all ranks then use rank 0's choice. Nothing is measured if all ranks already use a
    checkpoint's algorithms. context_ranks: ranks that share a micro-batch; `work` is a single rank's part.
    Return a notice for the user.
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
        dataset = micro_batch(work, tokens * context_ranks, model.vocab_size())
        rows = np.arange(len(dataset))
        weight = 1 / max(1, int(dataset.target_counts().sum()))
        engine.tune_gemms(dataset, rows, np.full(len(rows), weight))
    _C.set_tuned_gemms(gather_objects(_C.tuned_gemms())[0])
    return summary(json.loads(_C.tuned_gemms()), sizes)


def sizes_to_tune(most: int) -> list[int]:
    """Return the token counts to measure, to cover micro-batches from most / 16 to `most` tokens.

    An algorithm that was measured at n tokens is used from 7/8 n to 9/8 n (csrc/ops/gemm/tuned_gemms.h).
    """
    sizes, least = [most], max(most / 16, 2.0)
    while most >= _LEAST_TOKENS and sizes[-1] * 7 / 8 > least:
        sizes.append(min(math.ceil(sizes[-1] * 7 / 9), sizes[-1] - 1))
    return sizes if most >= _LEAST_TOKENS else []


def micro_batch(work: BatchShape, tokens: int, vocab_size: int) -> _C.TokenDataset:
    """Make random conversations with `tokens` tokens in all. Lengths and label ratio are those of `work`."""
    from fastsft import _C

    random, dataset = np.random.default_rng(0), _C.TokenDataset()
    max_seqlen = max(2, min(work.max_seqlen, tokens))
    full, rest = divmod(tokens, max_seqlen)
    for length in [max_seqlen] * full + [rest] * (rest > 1):
        targets = min(length - 1, work.labels * length // work.tokens)
        ids = random.integers(0, vocab_size, length).astype(np.int32)
        dataset.append(ids, [(length - targets, length)] if targets else [])
    return dataset


def summary(products: list[dict[str, Any]], sizes: list[int]) -> str:
    """Describe the measured GEMMs and their speedup in one line."""
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
