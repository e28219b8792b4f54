"""`--fsdp` and `fsdp_config` (docs/spec/trainer_arguments.md, section 7)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Protocol

from fastsft.runtime.launch import Launch
from fastsft.runtime.messages import warn_once
from fastsft.runtime.regular_files import read_json

_OTHER_TOKENS = ("offload", "auto_wrap")
_NO_EFFECT = {
    "min_num_params", "transformer_layer_cls_to_wrap", "auto_wrap_policy", "backward_prefetch",
    "forward_prefetch", "limit_all_gathers", "use_orig_params", "sync_module_states",
    "cpu_ram_efficient_loading", "reshard_after_forward", "version",
}  # fmt: skip
_OF_XLA = ("xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt")  # False, where transformers' Trainer looks for them
_REFUSED = {*_OF_XLA, "xla_fsdp_settings"}
_TRUE = ("y", "yes", "t", "true", "on", "1")


def strategies() -> dict[str, bool]:
    """The engine's sharding strategies, each with whether it shards within nodes."""
    from fastsft import _C

    return _C.strategies()


def fsdp_tokens(value: bool | str | Iterable[object] | None) -> list[str]:
    """The words of `--fsdp`: None, False and "" give none, True gives full_shard. ValueError for the rest."""
    if value is None or value is False or value in ("", "False", "false"):
        return []
    if value is True or value in ("True", "true"):
        return ["full_shard"]
    tokens = value.split() if isinstance(value, str) else [str(token) for token in value]
    known = (*strategies(), *_OTHER_TOKENS)
    for token in tokens:
        if token not in known:
            raise ValueError(f"--fsdp: unknown option {token!r}; known: {', '.join(known)}")
    if "full_shard" in tokens and "shard_grad_op" in tokens:
        raise ValueError(
            "`--fsdp full_shard` is not compatible with `--fsdp shard_grad_op`; choose one of the two"
        )
    if tokens == ["offload"]:
        raise ValueError('`--fsdp offload` cannot work on its own; write `--fsdp "full_shard auto_wrap"`')
    return tokens


def strategy_of(tokens: list[str]) -> str:
    """The strategy that the words of `--fsdp` name; `no_shard` when nothing is asked for."""
    named = [token for token in tokens if token not in _OTHER_TOKENS]
    if len(named) > 1:
        raise ValueError(f"--fsdp: expected one of {', '.join(strategies())}, got {' '.join(named)}")
    if named:
        return named[0]
    return "full_shard" if tokens else "no_shard"


def fsdp_flag(strategy: str, offload: bool = False) -> str:
    """The flag that asks for a strategy, as one types it."""
    return f'--fsdp "{strategy} offload"' if offload else f"--fsdp {strategy}"


def node_size(strategy: str, settings: dict[str, Any], place: Launch) -> int:
    """Ranks of one node, over which hybrid strategies shard; 0 for other strategies and for one rank.

    fsdp_config hybrid_shard_size, else the ranks of this machine. ValueError when nodes would not be equal
    numbers of ranks that follow each other.
    """
    if place.world_size == 1 or not strategies()[strategy]:
        return 0
    chosen = settings.get("hybrid_shard_size")
    size = place.local_world_size if chosen is None else int(chosen)
    if place.world_size % size:
        raise ValueError(
            f"--fsdp {strategy}: {place.world_size} ranks do not make nodes of {size} ranks; start equally "
            "many on every machine, or choose a divisor with --fsdp_config '{\"hybrid_shard_size\": n}'"
        )
    if chosen is None and place.rank % size != place.local_rank:
        raise ValueError(
            f"--fsdp {strategy}: rank {place.rank} is number {place.local_rank} of its machine; the ranks of "
            "a machine must follow each other (srun --distribution=block)"
        )
    return size


class ReductionFlags(Protocol):
    """Arguments that say when gradients are reduced."""

    @property
    def sync_each_batch(self) -> bool | None: ...
    @property
    def grad_dtype(self) -> str: ...


def check_reductions(args: ReductionFlags) -> None:
    """ValueError for gradients that would be kept whole in another type than float32."""
    if args.sync_each_batch is False and args.grad_dtype != "float32":
        raise ValueError(
            "--sync_each_batch False keeps gradients whole in float32, and --grad_dtype is "
            f"{args.grad_dtype}; leave one of them out"
        )


def _positive(key: str, value: object) -> int:
    if not str(value).isdigit() or int(str(value)) < 1:
        raise ValueError(f"fsdp_config: {key}: expected a number of ranks, at least 1, got {value!r}")
    return int(str(value))


def _truth(value: object) -> bool:
    return value.lower() in _TRUE if isinstance(value, str) else bool(value)


def fsdp_settings(value: object) -> dict[str, Any]:
    """`fsdp_config` from a path, a JSON string, a dictionary or None; keys lose the prefix `fsdp_`.

    Keys that cannot change the numbers are kept and named once; keys that fastsft cannot do raise ValueError.
    """
    if value is None:
        value = {}
    if isinstance(value, str):
        value = json.loads(value) if value.lstrip().startswith("{") else read_json(value, of_user=True)
    if not isinstance(value, dict):
        raise ValueError(f"fsdp_config: expected a JSON object, got {type(value).__name__}")
    settings = {key.removeprefix("fsdp_"): item for key, item in value.items()}
    for key, item in list(settings.items()):
        if key in _NO_EFFECT:
            if item and key != "version":
                warn_once(f"fsdp_config: {key} has no effect: the engine shards per decoder layer")
        elif key in _REFUSED:
            if _truth(item):
                raise ValueError(f"fastsft does not support fsdp_config {key}; leave it out")
        elif key == "state_dict_type":
            if str(item).upper() != "FULL_STATE_DICT":
                raise ValueError(
                    "state_dict_type: fastsft writes consolidated safetensors; use FULL_STATE_DICT"
                )
        elif key == "hybrid_shard_size":
            settings[key] = _positive(key, item)
        elif key not in ("activation_checkpointing", "cpu_offload"):
            raise ValueError(f"fsdp_config: unknown key {key!r}")
    if settings.get("min_num_params", 0) and settings.get("transformer_layer_cls_to_wrap") is not None:
        raise ValueError("`min_num_params` and `transformer_layer_cls_to_wrap` are mutually exclusive.")
    for key in ("activation_checkpointing", "cpu_offload"):
        settings[key] = _truth(settings.get(key, False))
    return {**dict.fromkeys(_OF_XLA, False), "min_num_params": 0, **settings}


def warn_of_other_layer_class(model_type: str, named: str | None) -> None:
    """Name a class of `--fsdp_transformer_layer_cls_to_wrap` that is not the model's decoder layer.

    `named` is one class or several, separated by commas. Units are decoder layers in any case. Source:
    docs/spec/trainer_arguments.md, section 3.
    """
    from fastsft import _C

    expected = f"{_C.model_families().get(model_type, '')}DecoderLayer"
    others = [name.strip() for name in (named or expected).split(",") if name.strip() != expected]
    if others:
        warn_once(
            f"fsdp_transformer_layer_cls_to_wrap: {', '.join(others)} is not the decoder layer of this model "
            f"({expected}); the engine shards per decoder layer in any case"
        )
