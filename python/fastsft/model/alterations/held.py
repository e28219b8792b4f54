"""The numbers that modules took from the configuration when they were built, and compute with ever since.

Where they differ from the configuration of today, the modules' count: that is what transformers computes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fastsft.model.alterations.finding import Alteration
from fastsft.model.alterations.held_gemma import found_of_gemma
from fastsft.model.alterations.held_rope import held_rope
from fastsft.model.alterations.tree import DROPOUT, EMBEDDING, Node, Tree, tensor_of
from fastsft.model.family import CAP, DEFAULT_ATTENTION, as_computed, tell_ignored_cap
from fastsft.originals.places import Places

if TYPE_CHECKING:
    from torch import nn

_WAY_OUT = "set it back, or train with transformers' Trainer"
_OF_EMBEDDINGS = {"max_norm": None, "scale_grad_by_freq": False, "sparse": False}


class HeldSettings:
    """The settings that the modules of `tree` compute with.

    `values`: settings of the engine that replace those of `config` (config.json as it would be saved).
    `held`: all that the modules hold, whatever `config` says. `found`: what no setting expresses.
    """

    def __init__(self, tree: Tree, config: dict[str, Any]) -> None:
        self.places = Places()  # of the libraries that the modules reach
        self.values: dict[str, object] = {}
        self.held: dict[str, object] = {}
        self.found: list[Alteration] = []
        self._tree, self._config = tree, config
        self._model = next(tree.of("ForCausalLM")).module
        self._gemma = str(config.get("model_type")).startswith("gemma")
        if self._gemma:  # the tree has no other
            self._take("hidden_activation", "gelu_pytorch_tanh", "gelu_pytorch_tanh")
        else:
            self._take("hidden_act", "silu")
        self._norms()
        self._attention()
        self._layers()
        rotary = next(tree.of("RotaryEmbedding"))
        rope, found = held_rope(rotary, config, self._head_dim())
        self.held["inv_freq"] = tensor_of(rotary.module, "inv_freq").tolist()
        self.values |= rope
        self.found += [*found, *self._embedding(), *self._objects_of_config(), *self._loss()]
        if self._gemma:
            self.found += list(found_of_gemma(tree, config))
            self._attention_cap()

    def notices(self) -> list[str]:
        """A line for each setting in which the modules differ from the configuration."""
        return [
            f"model.config.{name} is {self._config.get(name)!r}, but the model was built with {value!r}: as "
            "in transformers the modules count, and the saved config.json has your value"
            for name, value in self.values.items()
            if name not in ("pad_token_id", CAP)  # set for generation, by nearly every script; told already
        ]

    def _take(self, name: str, value: object, default: object = None) -> None:
        """`value` is held; a setting where the configuration says something else."""
        self.held[name] = value
        said = self._config.get(name)
        if (default if said is None else said) != value:
            self.values[name] = value

    def _different(self, where: str, value: object, native: object, way_out: str = _WAY_OUT) -> None:
        self.found.append(Alteration(where, f"is {value!r}", repr(native), way_out))

    def _norms(self) -> None:
        name = "eps" if self._gemma else "variance_epsilon"
        held = [(node, vars(node.module).get(name)) for node in self._tree.of("RMSNorm")]
        eps = self._usual_eps([value for _, value in held])
        for node, value in held:
            if value != eps:
                self._different(f"{node.path}.{name}", value, eps)
            if vars(node.module).get("offset"):  # a fused kernel's own setting
                self._different(f"{node.path}.offset", node.module.offset, 0.0)
        self._take("rms_norm_eps", eps, 1e-6)

    def _usual_eps(self, values: list[float | None]) -> float | None:
        """The value of most norms; of several the configuration's, which most scripts leave."""
        most = [value for value, number in Counter(values).items() if number == max(Counter(values).values())]
        said = self._config.get("rms_norm_eps", 1e-6)
        return said if said in most else most[0]

    def _head_dim(self) -> int:
        return _number(next(self._tree.of("Attention")).module, "head_dim")

    def _attention(self) -> None:
        nodes = list(self._tree.of("Attention"))
        heads = {_heads(node.module) for node in nodes}
        for node in nodes:
            self._of_attention(node)
        if len(heads) > 1:
            self._different("model.model.layers[...].self_attn", sorted(heads), "one shape for all layers")
            return
        num_heads, num_kv, head_dim = heads.pop()
        said = self._config["num_attention_heads"]
        if said != num_heads and all(hasattr(node.module, "qkv_proj") for node in nodes):
            self._different("model.config.num_attention_heads", said, num_heads)  # its forward reads it
            return
        self._take("num_attention_heads", num_heads)
        self._take("num_key_value_heads", num_kv, self._default_kv_heads(num_heads, num_kv))
        self.held["head_dim"] = head_dim
        said = self._config.get("head_dim") or self._config["hidden_size"] // num_heads
        if said != head_dim and not (self._config.get("model_type") == "qwen3" and head_dim == 128):
            self.values["head_dim"] = head_dim

    def _default_kv_heads(self, num_heads: int, num_kv: int) -> int:
        """The value of a configuration without the key: transformers has filled it in where a family does."""
        return num_kv if "num_key_value_heads" not in self._config else num_heads

    def _of_attention(self, node: Node) -> None:
        attributes, (num_heads, num_kv, head_dim) = vars(node.module), _heads(node.module)
        groups = attributes.get("num_key_value_groups", num_heads // max(num_kv, 1))
        if groups * num_kv != num_heads:
            self._different(f"{node.path}.num_key_value_groups", groups, num_heads // max(num_kv, 1))
        expected = (self._config.get("query_pre_attn_scalar", 256) if self._gemma else head_dim) ** -0.5
        scaling = attributes.get("scaling", expected)
        if not math.isclose(scaling, expected, rel_tol=1e-6):
            self._different(f"{node.path}.scaling", scaling, expected)
        if attributes.get("is_causal", True) is not True:
            self._different(f"{node.path}.is_causal", attributes["is_causal"], True)

    def _attention_cap(self) -> None:
        """Note the bound of scores that the modules hold, unless their attention leaves it out."""
        attention = str(self._setting("_attn_implementation") or DEFAULT_ATTENTION)
        held = {vars(node.module).get(CAP) for node in self._tree.of("Attention")}
        if len(held) > 1:
            self._different(f"model.model.layers[...].self_attn.{CAP}", held, "one bound for all layers")
        elif self._config.get("model_type") == "gemma2":
            computed = as_computed({**self._config, CAP: held.pop()}, attention)[CAP]
            tell_ignored_cap(self._config, attention)
            self.held[CAP] = computed
            if computed != self._config.get(CAP):
                self.values[CAP] = computed

    def dropout(self) -> Iterator[Alteration]:
        """Dropout that the modules would apply in training."""
        for node in self._tree.of("Attention"):
            held = vars(node.module).get("attention_dropout", 0.0)
            if held:
                yield Alteration(
                    f"{node.path}.attention_dropout", f"is {held}", "attention without dropout",
                    "load the model with from_pretrained(..., attention_dropout=0.0), or train with "
                    "transformers' Trainer",
                )  # fmt: skip
        for node in self._tree.of(DROPOUT):
            if node.module.p:
                yield Alteration(
                    f"{node.path}.p", f"is {node.module.p}", "no dropout",
                    "set it to 0.0, or train with transformers' Trainer",
                )  # fmt: skip

    def _layers(self) -> None:
        layers = list(self._tree.of("DecoderLayer"))
        said = self._config["num_hidden_layers"]
        if said < len(layers):
            self._different(
                "model.config.num_hidden_layers", said, f"all {len(layers)} layers that the model holds",
                "shorten model.model.layers too, or set it back",
            )  # fmt: skip
        self._take("num_hidden_layers", max(said, len(layers)) if said < len(layers) else len(layers))
        numbers = [vars(node.module).get("layer_idx") for node in self._tree.of("Attention")]
        if None not in numbers and len(set(numbers)) < len(numbers):
            self._different(
                "model.model.layers[...].self_attn.layer_idx", numbers, "each layer by itself",
                "number the layers: layer.self_attn.layer_idx = i",
            )  # fmt: skip
        self._windows(layers)

    def _windows(self, layers: list[Node]) -> None:
        """Note the layers that attend to a window: by their type; the size is the configuration's."""
        types = [vars(node.module).get("attention_type") for node in layers]
        if None in types:
            return
        sliding, size = "sliding_attention" in types, self._setting("sliding_window")
        if sliding and not size:
            self._different("model.config.sliding_window", size, "the window that the layers were built with")
        self.held["layer_types"] = types
        if types != list(self._setting("layer_types") or ()):
            self.values["layer_types"] = types
            self.values["use_sliding_window"] = sliding
        inner = next(self._tree.of("Model"))
        if sliding and not vars(inner.module).get("has_sliding_layers", True):
            self._different(f"{inner.path}.has_sliding_layers", False, True)
        for node, kind in zip(self._tree.of("Attention"), types, strict=True):
            held = vars(node.module).get("sliding_window")
            if kind == "sliding_attention" and held != size:
                self._different(f"{node.path}.sliding_window", held, size)

    def _setting(self, name: str) -> Any:
        """As the model's own configuration has it."""
        return getattr(self._model.config, name)

    def _embedding(self) -> Iterator[Alteration]:
        table = next(self._tree.of(EMBEDDING)).module
        self._take("pad_token_id", table.padding_idx)
        for name, native in _OF_EMBEDDINGS.items():
            if vars(table).get(name) != native:
                path = "model.model.embed_tokens"
                yield Alteration(f"{path}.{name}", f"is {vars(table)[name]!r}", repr(native), _WAY_OUT)

    def _objects_of_config(self) -> Iterator[Alteration]:
        """The parts of a model read one configuration; another object elsewhere would count there."""
        for node in self._tree.nodes:
            own = node.path.endswith("rotary_emb_local")  # transformers gives it a changed copy
            if not own and vars(node.module).get("config", self._model.config) is not self._model.config:
                yield Alteration(
                    f"{node.path}.config", "is another object than model.config", "model.config everywhere",
                    "change the fields of model.config, not the object",
                )  # fmt: skip

    def _loss(self) -> Iterator[Alteration]:
        kind = vars(self._model).get("loss_type")
        if kind not in (None, "ForCausalLM", "ForConditionalGeneration"):
            yield Alteration(
                "model.loss_type", f"is {kind!r}", "the cross entropy of the next token", _WAY_OUT
            )


def _number(module: nn.Module, name: str) -> int:
    return int(getattr(module, name))


def _heads(attention: nn.Module) -> tuple[int, int, int]:
    """Query heads, key/value heads and their size, by the shapes of the projections."""
    head_dim = _number(attention, "head_dim")
    if hasattr(attention, "qkv_proj"):
        num_kv = _number(attention, "num_key_value_heads")
        rows = tensor_of(attention.get_submodule("qkv_proj"), "weight").shape[0]
        return rows // head_dim - 2 * num_kv, num_kv, head_dim
    query, key = (
        tensor_of(attention.get_submodule(name), "weight").shape[0] for name in ("q_proj", "k_proj")
    )
    return query // head_dim, key // head_dim, head_dim
