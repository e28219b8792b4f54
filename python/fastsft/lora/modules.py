"""Lists a native family's modules from config.json, in the order of transformers' `named_modules`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HEAD, EMBEDDING = "lm_head", "model.embed_tokens"
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "q_norm", "k_norm")
_MLP = ("gate_proj", "up_proj", "gate_up_proj", "down_proj")
_BRANCH_NORMS = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
_DROPOUTS = ("resid_attn_dropout", "resid_mlp_dropout")
_PREFIX = "model.layers."


@dataclass(frozen=True)
class Module:
    """A module's name and parameters.

    parameters: the module's own parameter shapes, by name; a linear layer's weight is [outputs, inputs].
    """

    name: str
    parameters: Mapping[str, tuple[int, ...]]

    @property
    def is_linear(self) -> bool:
        """True if peft adapts the module as a linear layer."""
        shape = self.parameters.get("weight", ())
        return len(shape) == 2 and self.name != EMBEDDING

    @property
    def inputs(self) -> int:
        """A linear layer's input size."""
        return self.parameters["weight"][1]

    @property
    def outputs(self) -> int:
        """A linear layer's output size."""
        return self.parameters["weight"][0]


def modules_of(config: Mapping[str, Any]) -> list[Module]:
    """Return all modules in the model with this config.json. A tied head has the embedding's shape.

    ValueError for a configuration that the native engine does not support.
    """
    from fastsft import _C

    shapes = {name: tuple(shape) for name, shape in _C.parameter_shapes(json.dumps(dict(config)))}
    if f"{HEAD}.weight" not in shapes:
        shapes[f"{HEAD}.weight"] = shapes[f"{EMBEDDING}.weight"]
    own: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        module, _, parameter = name.rpartition(".")
        own.setdefault(module, {})[parameter] = shape
    names = _names(own, has_local_rotation=config.get("model_type") == "gemma3_text")
    return [Module(name, own.get(name, {})) for name in names]


def is_of_experts(name: str) -> bool:
    """Return True for a module of an expert, by its name in the model's files, and for a router."""
    return ".experts." in name or name.endswith(".gate")


def _names(own: Mapping[str, Any], *, has_local_rotation: bool) -> list[str]:
    layers = 1 + max((int(name.split(".")[2]) for name in own if name.startswith(_PREFIX)), default=-1)
    names = ["model", EMBEDDING, "model.layers"]
    of_layers: dict[str, list[str]] = {}
    for name in own:
        of_layers.setdefault(".".join(name.split(".")[:3]), []).append(name)
    for layer in range(layers):
        names += _names_of_layer(f"{_PREFIX}{layer}", of_layers[f"{_PREFIX}{layer}"])
    rotations = ["model.rotary_emb", *(["model.rotary_emb_local"] if has_local_rotation else [])]
    return [*names, "model.norm", *rotations, HEAD]


def _names_of_layer(layer: str, own: Sequence[str]) -> list[str]:
    attention = [f"{layer}.self_attn.{name}" for name in _ATTENTION]
    mlp = [f"{layer}.mlp.{name}" for name in _MLP]
    experts = [name for name in own if is_of_experts(name)]  # with their router
    is_fused = f"{layer}.self_attn.qkv_proj" in own  # Phi-3, which names some modules differently
    return [
        layer,
        f"{layer}.self_attn",
        *(name for name in attention if name in own),
        f"{layer}.mlp",
        *(name for name in mlp if name in own),
        *experts,
        f"{layer}.mlp.{'activation_fn' if is_fused else 'act_fn'}",
        f"{layer}.input_layernorm",
        f"{layer}.post_attention_layernorm",
        *(f"{layer}.{name}" for name in _BRANCH_NORMS if f"{layer}.{name}" in own),
        *(f"{layer}.{name}" for name in _DROPOUTS if is_fused),
    ]
