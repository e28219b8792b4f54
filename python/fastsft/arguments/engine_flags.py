"""Reads the flags that decide how the engine shards, stores and updates its state.

`state_options` combines them into an object. The rules of `--fsdp` and `fsdp_config` are in
docs/spec/trainer_arguments.md, section 7.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastsft.arguments.device_fields import EngineFlags, compute_dtype, state_flags
from fastsft.arguments.fp8 import fp8_flags
from fastsft.arguments.values import not_an_object, truth
from fastsft.runtime.launch import Launch
from fastsft.runtime.messages import warn_once
from fastsft.runtime.near_names import nearest_text
from fastsft.runtime.regular_files import read_json

if TYPE_CHECKING:
    from fastsft import _C

_OTHER_TOKENS = ("offload", "auto_wrap")
_NO_EFFECT = {
    "min_num_params", "transformer_layer_cls_to_wrap", "auto_wrap_policy", "backward_prefetch",
    "forward_prefetch", "limit_all_gathers", "use_orig_params", "sync_module_states",
    "cpu_ram_efficient_loading", "reshard_after_forward", "version",
}  # fmt: skip
# the result always has these keys, because transformers' Trainer reads them
_OF_XLA = ("xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt")
_SWITCHES = ("activation_checkpointing", "cpu_offload")
_REFUSED = {*_OF_XLA, "xla_fsdp_settings"}
# value of --optim -> the C++ core's optimizer name
OPTIMIZERS = {
    "adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw", "adamw_apex_fused": "adamw",
    "sgd": "sgd", "adafactor": "adafactor", "adamw_8bit": "adamw_8bit", "adamw_bnb_8bit": "adamw_8bit",
}  # fmt: skip


def state_options(args: EngineFlags) -> _C.StateOptions:
    """Return the options for parameters, gradients and optimizer state, which engine and memory plan read."""
    return default_state_options().replace(
        strategy=args.sharding_strategy if args.world_size > 1 else "no_shard",
        optimizer=optimizer_of(args),
        compute_dtype=compute_dtype(args),
        offload=args.offload,
        # the memory plan chooses the final values
        sync_each_batch=True,
        tile_tokens=0,
        offload_inputs=False,
        context_parallel_size=args.context_parallel_size,
        **state_flags(args),
        **fp8_flags(args),
    )


def default_state_options() -> _C.StateOptions:
    """Return the options for a single rank that computes in float32 and does not offload."""
    from fastsft import _C

    return _C.StateOptions()


def optimizer_of(args: EngineFlags) -> str:
    """Return the core's name for the optimizer that --optim selects, such as adamw for adamw_torch."""
    return OPTIMIZERS[args.optim]


def optimizer_state_bytes(args: EngineFlags) -> float:
    """Return optimizer state bytes per parameter; for adafactor, a likely upper bound."""
    moment = {"float32": 4, "bfloat16": 2}[args.optim_dtype]
    kinds = {"adamw": 2.0 * moment, "adamw_8bit": 2 + 8 / 256, "sgd": 0.0, "adafactor": 1.0}
    return kinds[optimizer_of(args)]


def check_reductions(args: EngineFlags) -> None:
    """Raise ValueError if --sync_each_batch is False and --grad_dtype is not float32."""
    if args.sync_each_batch is False and args.grad_dtype != "float32":
        raise ValueError(
            "--sync_each_batch False keeps gradients whole in float32, and --grad_dtype is "
            f"{args.grad_dtype}; leave one of them out"
        )


@dataclass(frozen=True)
class DeepSpeedPlan:
    """Settings that a DeepSpeed file requests.

    stage: ZeRO stage. strategy: the engine's sharding strategy. offload: True to offload optimizer state.
    saves_16bit: True to save the model in 16 bits. scheduler: the section `scheduler`; None if the flags
    decide.
    """

    stage: int
    strategy: str
    offload: bool
    saves_16bit: bool
    scheduler: dict[str, Any] | None


def strategies() -> dict[str, bool]:
    """Return the engine's sharding strategies: True for a strategy that shards only within nodes."""
    from fastsft import _C

    return _C.strategies()


def _way_of_token(token: str, options: Iterable[str]) -> str:
    if "," in token:
        return "; write the words with spaces between them"
    return nearest_text(token, options)


def fsdp_tokens(value: bool | str | Iterable[object] | None) -> list[str]:
    """Split the value of `--fsdp` into words. ValueError for unknown or contradictory words.

    None, False and "" give an empty list; True gives full_shard.
    """
    if value is None or value is False or value in ("", "False", "false"):
        return []
    if value is True or value in ("True", "true"):
        return ["full_shard"]
    tokens = value.split() if isinstance(value, str) else [str(token) for token in value]
    options = (*strategies(), *_OTHER_TOKENS)
    for token in tokens:
        if token not in options:
            raise ValueError(
                f"--fsdp: unknown option {token!r}; known: {', '.join(options)}"
                f"{_way_of_token(token, options)}"
            )
    if "full_shard" in tokens and "shard_grad_op" in tokens:
        raise ValueError(
            "`--fsdp full_shard` is not compatible with `--fsdp shard_grad_op`; choose one of the two"
        )
    if tokens == ["offload"]:
        raise ValueError('`--fsdp offload` cannot work on its own; write `--fsdp "full_shard auto_wrap"`')
    return tokens


def strategy_of(tokens: list[str]) -> str:
    """Return the sharding strategy that the words of `--fsdp` name; `no_shard` if there are no words."""
    named = [token for token in tokens if token not in _OTHER_TOKENS]
    if len(named) > 1:
        raise ValueError(f"--fsdp: expected one of {', '.join(strategies())}, got {' '.join(named)}")
    if named:
        return named[0]
    return "full_shard" if tokens else "no_shard"


def fsdp_flag(strategy: str, offload: bool = False) -> str:
    """Return the flag that selects a strategy, as typed in a shell."""
    return f'--fsdp "{strategy} offload"' if offload else f"--fsdp {strategy}"


def node_size(strategy: str, settings: dict[str, Any], place: Launch) -> int:
    """Return how many ranks a hybrid strategy shards over; 0 for other strategies or a single rank.

    The number is fsdp_config's hybrid_shard_size; by default, this machine's rank count. ValueError
    unless all nodes have this number of consecutive ranks.
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


def _positive(key: str, value: object) -> int:
    if not str(value).isdigit() or int(str(value)) < 1:
        raise ValueError(f"fsdp_config: {key}: expected a number of ranks, at least 1, got {value!r}")
    return int(str(value))


def fsdp_settings(value: object) -> dict[str, Any]:
    """Read `fsdp_config`, which is a path, a JSON string, a dictionary or None; return it with defaults.

    The prefix `fsdp_` is removed from keys. A warning names keys that have no effect. ValueError for keys
    that fastsft does not support.
    """
    if value is None:
        value = {}
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.lstrip().startswith("{") else read_json(value, of_user=True)
        except ValueError as error:
            raise ValueError(
                f"--fsdp_config: expected a JSON file or object, got {value!r}: {error}"
            ) from None
    if not isinstance(value, dict):
        raise ValueError(f"--fsdp_config: {not_an_object(value)}")
    settings = {key.removeprefix("fsdp_"): item for key, item in value.items()}
    for key, item in list(settings.items()):
        if key in _NO_EFFECT:
            if item and key != "version":
                warn_once(f"fsdp_config: {key} has no effect: the engine shards per decoder layer")
        elif key in _REFUSED:
            if truth(item):
                raise ValueError(f"fastsft does not support fsdp_config {key}; leave it out")
        elif key == "state_dict_type":
            if str(item).upper() != "FULL_STATE_DICT":
                raise ValueError(
                    "state_dict_type: fastsft writes consolidated safetensors; use FULL_STATE_DICT"
                )
        elif key == "hybrid_shard_size":
            settings[key] = _positive(key, item)
        elif key not in _SWITCHES:
            known = (*_NO_EFFECT, *_REFUSED, "state_dict_type", "hybrid_shard_size", *_SWITCHES)
            near = nearest_text(key, known) or f"; known: {', '.join(known)}"
            raise ValueError(f"--fsdp_config: unknown key {key!r}{near}, or leave it out")
    if str(settings.get("version", 1)) not in ("1", "2"):
        raise ValueError(f"--fsdp_config: version: expected 1 or 2, got {settings['version']!r}")
    if settings.get("min_num_params", 0) and settings.get("transformer_layer_cls_to_wrap") is not None:
        raise ValueError(
            "`min_num_params` and `transformer_layer_cls_to_wrap` are mutually exclusive; leave one out"
        )
    for key in _SWITCHES:
        settings[key] = truth(settings.get(key, False))
    return {**dict.fromkeys(_OF_XLA, False), "min_num_params": 0, **settings}


def warn_of_other_layer_class(model_type: str, named: str | None) -> None:
    """Warn once if `--fsdp_transformer_layer_cls_to_wrap` names other classes than the model's decoder layer.

    named: class names, separated by commas. See docs/spec/trainer_arguments.md, section 3.
    """
    from fastsft import _C

    expected = f"{_C.model_families().get(model_type, '')}DecoderLayer"
    others = [name.strip() for name in (named or expected).split(",") if name.strip() != expected]
    if others:
        warn_once(
            f"fsdp_transformer_layer_cls_to_wrap: {', '.join(others)} is not the decoder layer of this model "
            f"({expected}) and changes nothing, as each decoder layer is sharded; leave it out, or correct it"
        )
