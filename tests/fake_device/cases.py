"""Options and strategies that the engines of the tests are made with."""

from __future__ import annotations

from typing import Any

from fastsft import _C
from native_families import CONFIGS

Cases = dict[str, dict[str, Any]]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bfloat16": {"compute_dtype": "bfloat16"},
    "float16": {"compute_dtype": "float16"},
    "narrow": {
        "compute_dtype": "bfloat16", "master_dtype": "split", "optim_dtype": "bfloat16",
        "grad_dtype": "bfloat16",
    },
    "offload": {"compute_dtype": "bfloat16", "offload": True},
    "recompute block": {"recompute": "block"},
    "recompute none": {"recompute": "none"},
    "tiles": {"recompute": "block", "tile_tokens": 7},
    "inputs on the host": {"recompute": "block", "offload_inputs": True},
    "long rows": {
        "recompute": "block", "compute_dtype": "bfloat16", "tile_tokens": 7, "offload_inputs": True,
    },
    "one reduction a step": {"sync_each_batch": False},
    "adamw_8bit": {"optimizer": "adamw_8bit"},
    "adafactor": {"optimizer": "adafactor"},
    "sgd": {"optimizer": "sgd"},
}  # fmt: skip
DTYPES: dict[str, dict[str, Any]] = {"float32": {}, "bfloat16": {"compute_dtype": "bfloat16"}}
# One family for each difference between the ways in which transformers computes it.
GENERIC = ("biases", "qwen3_moe", "gemma2")


def on_strategies(named: Cases) -> Cases:
    """Return the cases with every strategy."""
    return {
        f"{strategy} {name}": {
            **case, "node_size": 2 if within_nodes else 0,
            "options": {"strategy": strategy, **case["options"]},
        }
        for strategy, within_nodes in _C.strategies().items()
        for name, case in named.items()
    }  # fmt: skip


def of_family(family: str, dtype: str, **more: Any) -> dict[str, Any]:
    return {"family": family, "options": DTYPES[dtype], **more}


# Matrices of quantised operands have sizes that are multiples of 16.
FP8: Cases = {
    f"fp8 {scaling}": {
        "family": "untied", "sizes": {"intermediate_size": 112},
        "options": {"compute_dtype": "bfloat16", "fp8": scaling},
    }
    for scaling in ("rowwise", "tensorwise")
}  # fmt: skip
# Ranks that share the tokens of a micro-batch, with the options that change a step's buffers and copies.
CONTEXT = on_strategies(
    {
        name: {"family": "untied", "options": {"context_parallel_size": 2, **OPTIONS[name]}}
        for name in ("plain", "bfloat16", "long rows", "recompute none")
    }
)
STRATEGIES = on_strategies(
    {
        name: {"family": "untied", "options": OPTIONS[name]}
        for name in ("plain", "bfloat16", "offload", "long rows", "one reduction a step")
    }
)
# What else every strategy trains, in groups.
GROUPS: dict[str, Cases] = {
    **{dtype: on_strategies({family: of_family(family, dtype) for family in CONFIGS}) for dtype in DTYPES},
    "generic": on_strategies(
        {
            f"generic {family} {dtype}": of_family(family, dtype, generic=True)
            for family in GENERIC
            for dtype in DTYPES
        }
    ),
    "options": on_strategies(
        {
            **{
                name: {"family": "untied", "options": OPTIONS[name]}
                for name in ("tiles", "inputs on the host", "narrow", "adamw_8bit")
            },
            **FP8,
        }
    ),
}
