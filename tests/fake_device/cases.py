"""Options and strategies that the engines of the tests are made with."""

from __future__ import annotations

from typing import Any

from fastsft import _C

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
    "adamw_8bit": {"optimizer": "adamw_8bit"},
    "adafactor": {"optimizer": "adafactor"},
    "sgd": {"optimizer": "sgd"},
}  # fmt: skip
STRATEGIES: Cases = {
    f"{strategy} {name}": {
        "family": "untied", "node_size": 2 if within_nodes else 0,
        "options": {"strategy": strategy, **OPTIONS[name]},
    }
    for strategy, within_nodes in _C.strategies().items()
    for name in ("plain", "bfloat16", "offload", "long rows")
}  # fmt: skip
# Ranks that share the tokens of a micro-batch, with the options that change a step's buffers and copies.
CONTEXT: Cases = {
    f"{strategy} {name}": {
        "family": "untied", "node_size": 2 if within_nodes else 0,
        "options": {"strategy": strategy, "context_parallel_size": 2, **OPTIONS[name]},
    }
    for strategy, within_nodes in _C.strategies().items()
    for name in ("plain", "bfloat16", "long rows", "recompute none")
}  # fmt: skip
