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
# Of models in 16 and 8 bits. Larger weights make roundings larger than what the tests look for: losses of
# bfloat16 and float32 are 1e-2 apart then, on the CPU as on the device, and tokens go to other experts.
SMALL_WEIGHTS = {"initializer_range": 0.08}
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
    sizes = {} if dtype == "float32" else SMALL_WEIGHTS
    return {"family": family, "sizes": sizes, "options": DTYPES[dtype], **more}


def of_options(name: str, **options: Any) -> dict[str, Any]:
    """Return a case of Llama with the options of this name, and more."""
    options |= OPTIONS[name]
    sizes = SMALL_WEIGHTS if "compute_dtype" in options else {}
    return {"family": "untied", "sizes": sizes, "options": options}


# Matrices of quantised operands have sizes that are multiples of 16.
FP8: Cases = {
    f"fp8 {scaling}": {
        "family": "untied", "sizes": {**SMALL_WEIGHTS, "intermediate_size": 112},
        "options": {"compute_dtype": "bfloat16", "fp8": scaling},
    }
    for scaling in ("rowwise", "tensorwise")
}  # fmt: skip
# Ranks that share the tokens of a micro-batch, with the options that change a step's buffers and copies.
CONTEXT = on_strategies(
    {
        name: of_options(name, context_parallel_size=2)
        for name in ("plain", "bfloat16", "long rows", "recompute none")
    }
)
ADAPTERS: Cases = {
    name: {
        "family": "untied",
        "sizes": SMALL_WEIGHTS,
        "adapters": True,
        "options": {**OPTIONS["bfloat16"], **options},
    }
    for name, options in {"lora": {}, "q_lora": {"frozen_dtype": "nf4"}}.items()
}
STRATEGIES = on_strategies(
    {name: of_options(name) for name in ("plain", "bfloat16", "offload", "long rows", "one reduction a step")}
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
            **{name: of_options(name) for name in ("tiles", "inputs on the host", "narrow", "adamw_8bit")},
            **FP8,
            **ADAPTERS,
        }
    ),
}
# Whose waits no other case has.
MUTATED: Cases = on_strategies(
    {
        # The host joins the halves of a master for whoever reads it.
        "offload split": of_options("offload", master_dtype="split"),
        "adafactor": of_options("adafactor"),
        "blocking": {"family": "untied", "options": {"prefetch": False, "blocking": True}},
    }
)  # fmt: skip
