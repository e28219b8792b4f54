"""The modules of a causal model of transformers: which are expected where, and of which class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastsft.model.alterations.finding import Alteration, path_of
from fastsft.model.alterations.known import equal_replacement
from fastsft.model.alterations.reach import CONDENSED
from fastsft.model.alterations.registries import GELU_CLASSES, SILU_CLASSES
from fastsft.originals.functions import described, is_written_in

if TYPE_CHECKING:
    import torch
    from torch import nn

LINEAR, EMBEDDING = "torch.nn.modules.linear.Linear", "torch.nn.modules.sparse.Embedding"
LIST, SILU, GELU = "torch.nn.modules.container.ModuleList", SILU_CLASSES[0], GELU_CLASSES[0]
DROPOUT = "torch.nn.modules.dropout.Dropout"
_CHILDREN = {
    "ForCausalLM": {"model": "Model", "lm_head": LINEAR},
    "Model": {"embed_tokens": EMBEDDING, "layers": LIST, "norm": "RMSNorm", "rotary_emb": "RotaryEmbedding"},
    "DecoderLayer": {
        "self_attn": "Attention", "mlp": "MLP", "input_layernorm": "RMSNorm",
        "post_attention_layernorm": "RMSNorm",
    },
    "Attention": dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), LINEAR),
    "MLP": {"gate_proj": LINEAR, "up_proj": LINEAR, "down_proj": LINEAR, "act_fn": SILU},
}  # fmt: skip
_NORMED_HEADS = {**_CHILDREN["Attention"], "q_norm": "RMSNorm", "k_norm": "RMSNorm"}
_GEMMA = {
    "DecoderLayer": {
        **_CHILDREN["DecoderLayer"], "pre_feedforward_layernorm": "RMSNorm",
        "post_feedforward_layernorm": "RMSNorm",
    },
    "MLP": {**_CHILDREN["MLP"], "act_fn": GELU},
}  # fmt: skip
# Of families, by the prefix of their classes: what a role has in place of the above.
_OWN_CHILDREN: dict[str, dict[str, dict[str, str]]] = {
    "Qwen3": {"Attention": _NORMED_HEADS},
    "Phi3": {
        "DecoderLayer": {
            **_CHILDREN["DecoderLayer"], "resid_attn_dropout": DROPOUT, "resid_mlp_dropout": DROPOUT,
        },
        "Attention": {"qkv_proj": LINEAR, "o_proj": LINEAR},
        "MLP": {"gate_up_proj": LINEAR, "down_proj": LINEAR, "activation_fn": SILU},
    },
    "Gemma2": _GEMMA,
    "Gemma3": {
        **_GEMMA, "Attention": _NORMED_HEADS,
        "Model": {**_CHILDREN["Model"], "rotary_emb_local": "RotaryEmbedding"},
    },
}  # fmt: skip
# Classes of a role under another name than the prefix and the role.
_NAMES = {("Gemma3", "Model"): "TextModel", ("Gemma3", EMBEDDING): "TextScaledWordEmbedding"}
_PARAMETERS = {LINEAR: ("weight", "bias"), EMBEDDING: ("weight",), "RMSNorm": ("weight",)}
# Before transformers 4.48 the kind of attention was a class, and each attention held the rotary.
_OLD_ATTENTION = ("SdpaAttention", "FlashAttention2")
_WAY_OUT = "give a model with the library's own modules, or train with transformers' Trainer"


@dataclass(frozen=True)
class Node:
    """A module at a place where one is expected: its path, its role and itself."""

    path: str
    role: str
    module: nn.Module


class Tree:
    """The nodes of `model`, a <prefix>ForCausalLM; `found` holds what does not belong there."""

    def __init__(self, model: nn.Module, prefix: str) -> None:
        self.nodes: list[Node] = []
        self.found: list[Alteration] = []
        self.equal: list[str] = []
        self._prefix, self._home = prefix, type(model).__module__
        self._visit(path_of(""), "ForCausalLM", model)

    def of(self, role: str) -> Iterator[Node]:
        """Nodes of a role."""
        return (node for node in self.nodes if node.role == role)

    def _visit(self, path: str, role: str, module: nn.Module | None) -> None:
        module = None if module is None else uncompiled_module(module)
        if not self._is_expected(path, role, module):
            return
        assert module is not None  # which no role expects
        self.nodes.append(Node(path, role, module))
        self.found += _foreign_parameters(path, role, module)
        if role == LIST:
            for position, layer in enumerate(module._modules.values()):
                self._visit(f"{path}[{position}]", "DecoderLayer", layer)
            return
        expected = self._children(role)
        fused = {"act_fn", "activation_fn"} if equal_replacement(type(module)) else set()
        for name in expected.keys() - module._modules.keys() - fused:
            self._finding(f"{path}.{name}", "is not there", expected[name])
        for name, child in module._modules.items():
            if name in expected:
                self._visit(f"{path}.{name}", expected[name], child)
            elif child is not None and not (role == "Attention" and name == "rotary_emb"):
                self._finding(
                    f"{path}.{name}", f"is an added {described(type(child))}", "the model without it"
                )

    def _children(self, role: str) -> dict[str, str]:
        return _OWN_CHILDREN.get(self._prefix, {}).get(role) or _CHILDREN.get(role, {})

    def _is_expected(self, path: str, role: str, module: object) -> bool:
        name = f"{type(module).__module__}.{type(module).__qualname__}"
        other = _NAMES.get((self._prefix, role), role)
        wanted = [other] if "." in other else [f"{self._home}.{self._prefix}{other}"]
        if role == SILU:
            wanted += SILU_CLASSES
        if role == GELU:
            wanted += GELU_CLASSES
        if role == "Attention":
            wanted += [f"{self._home}.{self._prefix}{old}" for old in _OLD_ATTENTION]
        if name in wanted:
            return True
        known = equal_replacement(type(module))
        if known is not None:
            self.equal.append(known)
            return True
        self._finding(path, f"is {described(type(module))}", wanted[0])
        return False

    def _finding(self, path: str, found: str, native: str) -> None:
        way_out = CONDENSED if path.endswith("rotary_emb") else _WAY_OUT
        native = f"{self._home}.{self._prefix}{native}" if native in _CHILDREN else native
        self.found.append(Alteration(path, found, native, way_out))


def uncompiled_module(module: nn.Module) -> nn.Module:
    """The module inside of torch.compile's wrapper, which computes the same."""
    while type(module).__name__ == "OptimizedModule" and is_written_in(
        type(module).__init__, "torch._dynamo"
    ):
        module = module.get_submodule("_orig_mod")
    return module


def tensor_of(module: nn.Module, name: str) -> torch.Tensor:
    """Its parameter or buffer `name`."""
    found: torch.Tensor = getattr(module, name)
    return found


def _foreign_parameters(path: str, role: str, module: nn.Module) -> Iterator[Alteration]:
    allowed = _PARAMETERS.get(role, ())
    for name, parameter in module._parameters.items():
        if parameter is not None and (name not in allowed or (path == "model.lm_head" and name == "bias")):
            yield Alteration(f"{path}.{name}", "is an added parameter", "the model without it", _WAY_OUT)
    for name in allowed[:1]:
        if module._parameters.get(name) is None:
            yield Alteration(f"{path}.{name}", "is no parameter", "with a trained one", _WAY_OUT)
