"""Reads the settings that a given model's modules compute with.

The modules read the configuration when the model was built, and a script may have changed it since. If the
two differ, the modules' settings are used, as in transformers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fastsft.model.alterations.alteration import Alteration
from fastsft.model.alterations.module_rotation import rotation_settings
from fastsft.model.alterations.modules import ROTATION, uncompiled_module
from fastsft.model.family import CAP, DEFAULT_ATTENTION, as_computed, tell_ignored_cap
from fastsft.model.native_support import activation_setting

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

_SET_BACK = "set it back, or train with transformers' Trainer"
# Reported elsewhere or expected: nearly every script sets pad_token_id.
_TOLD_ELSEWHERE = ("pad_token_id", CAP)


class ModuleSettings:
    """The settings in a model's modules, which must have their family's classes and names.

    all: every setting that was read. differing: settings that replace those in `config`. found: values that
    no setting can describe. config: the config.json that a save would write.
    """

    def __init__(self, model: PreTrainedModel, config: dict[str, Any]) -> None:
        self.all: dict[str, object] = {}
        self.differing: dict[str, object] = {}
        self.found: list[Alteration] = []
        self._model, self._config = model, config
        self._layers = [uncompiled_module(layer) for layer in _decoder(model).layers]
        self._attentions = [uncompiled_module(layer.get_submodule("self_attn")) for layer in self._layers]
        name, activation = activation_setting(str(config.get("model_type")))
        self._set(name, activation, activation if name == "hidden_activation" else None)
        self._set("rms_norm_eps", self._usual_eps(), 1e-6)
        self._set_heads()
        self._set_layers()
        self._set_layer_types()
        rotary: Any = uncompiled_module(_decoder(model).rotary_emb)
        settings, found = rotation_settings(rotary, ROTATION, config, _heads(self._attentions[0])[2])
        self.all["inv_freq"] = rotary.inv_freq.tolist()
        self.differing |= settings
        self._set("pad_token_id", uncompiled_module(_decoder(model).embed_tokens).padding_idx)
        self.found += [*found, *self._other_loss()]
        self._set_attention_cap()

    def notices(self) -> list[str]:
        """Return a message for each setting that differs between the modules and the configuration."""
        return [
            f"model.config.{name} is {self._config.get(name)!r}, but the model was built with {value!r}: as "
            "in transformers the modules count, and the saved config.json has your value"
            for name, value in self.differing.items()
            if name not in _TOLD_ELSEWHERE
        ]

    def _set(self, name: str, value: object, default: object = None) -> None:
        self.all[name] = value
        said = self._config.get(name)
        if (default if said is None else said) != value:
            self.differing[name] = value

    def _refuse(self, where: str, value: object, native: object, way_out: str = _SET_BACK) -> None:
        self.found.append(Alteration(where, f"is {value!r}", repr(native), way_out))

    def _usual_eps(self) -> object:
        """Return the most frequent norm epsilon.

        If several are equally frequent, prefer the configuration's.
        """
        norms = [vars(each) for each in self._model.modules() if type(each).__name__.endswith("RMSNorm")]
        counts = Counter(norm.get("variance_epsilon", norm.get("eps")) for norm in norms)
        most = [value for value, count in counts.items() if count == max(counts.values())]
        said = self._config.get("rms_norm_eps", 1e-6)
        return said if said in most else most[0]

    def _set_heads(self) -> None:
        heads = {_heads(attention) for attention in self._attentions}
        if len(heads) > 1:
            self._refuse("model.model.layers[...].self_attn", sorted(heads), "one shape for all layers")
            return
        num_heads, num_kv, head_dim = heads.pop()
        said = self._config["num_attention_heads"]
        # The forward pass in qkv_proj reads the configuration.
        if said != num_heads and hasattr(self._attentions[0], "qkv_proj"):
            self._refuse("model.config.num_attention_heads", said, num_heads)
            return
        self._set("num_attention_heads", num_heads)
        # If the key is missing, transformers has used the family's default.
        default = num_heads if "num_key_value_heads" in self._config else num_kv
        self._set("num_key_value_heads", num_kv, default)
        self.all["head_dim"] = head_dim
        said = self._config.get("head_dim") or getattr(self._model.config, "head_dim", None)
        if (said or self._config["hidden_size"] // num_heads) != head_dim:
            self.differing["head_dim"] = head_dim

    def _set_layers(self) -> None:
        count, said = len(self._layers), self._config["num_hidden_layers"]
        if said < count:
            self._refuse(
                "model.config.num_hidden_layers", said, f"all {count} layers that the model holds",
                "shorten model.model.layers too, or set it back",
            )  # fmt: skip
        self._set("num_hidden_layers", count)
        numbers = [vars(attention).get("layer_idx") for attention in self._attentions]
        if None not in numbers and len(set(numbers)) < count:
            self._refuse(
                "model.model.layers[...].self_attn.layer_idx", numbers, "each layer by itself",
                "number the layers: layer.self_attn.layer_idx = i",
            )  # fmt: skip

    def _set_layer_types(self) -> None:
        """Set the layer types. The window size is read from the configuration."""
        types = [vars(layer).get("attention_type") for layer in self._layers]
        if None in types:
            return
        is_sliding, size = "sliding_attention" in types, self._model.config.sliding_window
        if is_sliding and not size:
            self._refuse("model.config.sliding_window", size, "the window that the layers were built with")
        self.all["layer_types"] = types
        if types != list(self._model.config.layer_types or ()):
            self.differing |= {"layer_types": types, "use_sliding_window": is_sliding}
        elif is_sliding and self._config.get("use_sliding_window") is False:  # changed after the build
            self.differing["use_sliding_window"] = True

    def _set_attention_cap(self) -> None:
        """Set the cap on attention scores that the modules apply; None if their attention ignores the cap."""
        attention = str(self._model.config._attn_implementation or DEFAULT_ATTENTION)
        caps = {vars(each).get(CAP) for each in self._attentions}
        if len(caps) > 1:
            self._refuse(f"model.model.layers[...].self_attn.{CAP}", caps, "one bound for all layers")
            return
        (cap,) = caps
        if self._config.get("model_type") != "gemma2":
            if cap is not None:
                self._refuse(f"model.model.layers[...].self_attn.{CAP}", cap, None)
        else:
            tell_ignored_cap(self._config, attention)
        self.all[CAP] = as_computed({**self._config, CAP: cap}, attention)[CAP]
        if self.all[CAP] != self._config.get(CAP):
            self.differing[CAP] = self.all[CAP]

    def _other_loss(self) -> Iterator[Alteration]:
        kind = vars(self._model).get("loss_type")
        if kind not in (None, "ForCausalLM", "ForConditionalGeneration"):
            native = "the cross entropy of the next token"
            yield Alteration("model.loss_type", f"is {kind!r}", native, _SET_BACK)


def structure_settings(model: PreTrainedModel, config: dict[str, Any]) -> dict[str, object]:
    """Return the settings that decide which modules the model has, if its layers can be read."""
    settings: dict[str, object] = dict([activation_setting(str(config.get("model_type")))])
    layers = getattr(getattr(getattr(model, "model", None), "layers", None), "_modules", None)
    if layers:
        settings["num_hidden_layers"] = len(layers)
        types = [
            vars(uncompiled_module(layer)).get("attention_type")
            for layer in layers.values()
            if layer is not None
        ]
        if "layer_types" in config and None not in types:
            settings["layer_types"] = types
    return settings


def _decoder(model: PreTrainedModel) -> Any:
    return uncompiled_module(model.model)


def _heads(attention: Any) -> tuple[int, int, int]:
    """Return query head count, key/value head count and head size, from the projections."""
    head_dim = int(attention.head_dim)
    if hasattr(attention, "qkv_proj"):
        num_kv = int(attention.num_key_value_heads)
        return _rows(attention.qkv_proj) // head_dim - 2 * num_kv, num_kv, head_dim
    return _rows(attention.q_proj) // head_dim, _rows(attention.k_proj) // head_dim, head_dim


def _rows(linear: nn.Module) -> int:
    return int(linear.get_parameter("weight").shape[0])
