"""The rotation that a rotary module applies, as settings of the engine."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

from fastsft.model.alterations.finding import Alteration
from fastsft.model.alterations.reach import CONDENSED
from fastsft.model.alterations.tree import Node, tensor_of
from fastsft.originals.functions import is_defined_there

if TYPE_CHECKING:
    import torch
    from torch import nn

# Frequencies are built by pow in float32 on whatever device; a changed base or factor differs by far more.
_ROUNDING = 2e-6
_KNOWN = ("default", "linear", "llama3", "yarn", "dynamic", "longrope")
_SWITCHING = ("dynamic", "longrope")  # with other frequencies for longer batches
_UNITS = "transformers.modeling_rope_utils"


def held_rope(node: Node, config: dict[str, Any], head_dim: int) -> tuple[dict[str, Any], list[Alteration]]:
    """Settings that replace those of `config` where the module holds others, and what none can say.

    As they are where the configuration gives the held frequencies; else original positions, another base or
    one linear factor, whichever gives exactly the held ones.
    """
    module, where = node.module, node.path
    kind, bits = getattr(module, "rope_type", "default"), tensor_of(module, "inv_freq").dtype
    if kind == _kind(config) and kind not in _KNOWN:  # the engine refuses it by the configuration's words
        return {}, []
    held = _held(module, kind)
    scale = float(getattr(module, "attention_scaling", 1.0))
    expected, native_scale = _of_config(module, config, head_dim)
    is_scaled = math.isclose(scale, native_scale, rel_tol=_ROUNDING)
    is_expected = expected is not None and _same(expected, held, bits)
    if not is_scaled and (is_expected or scale != 1.0):
        return {}, [Alteration(f"{where}.attention_scaling", f"is {scale}", f"{native_scale}", CONDENSED)]
    if kind != _kind(config) and kind in _SWITCHING:  # of another number for each length
        return {}, [Alteration(f"{where}.rope_type", f"is {kind!r}", f"{_kind(config)!r}", CONDENSED)]
    if is_expected:
        return {}, []
    for theta in (_theta(config), _base_of(held, head_dim)):
        if theta is not None and _same(original_frequencies(theta, head_dim), held, bits):
            return _settings(config, theta, None), []
    theta = _theta(config)
    factor = float(f"{1.0 / max(float(held[0]), 1e-30):.6g}") if len(held) else 0.0
    if factor > 0 and _same(original_frequencies(theta, head_dim) / factor, held, bits):
        return _settings(config, theta, factor), []
    return {}, [
        Alteration(
            f"{where}.inv_freq", f"starts {[round(float(value), 6) for value in held[:3]]}",
            f"rope {_kind(config)!r} of base {theta:g}", CONDENSED,
        )
    ]  # fmt: skip


def original_frequencies(theta: float, head_dim: int) -> torch.Tensor:
    """float32 [head_dim / 2]: theta ** (-2i / head_dim)."""
    import torch

    return 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim))


def _held(module: nn.Module, kind: str) -> torch.Tensor:
    """float32 [head_dim / 2]: the frequencies of batches that are not longer than the model's positions."""
    held = tensor_of(module, "inv_freq")
    first = getattr(module, "original_inv_freq", None)
    if kind in _SWITCHING and first is not None and _holds_longer(module, kind):
        held = first
    return held.detach().float().cpu()


def _holds_longer(module: nn.Module, kind: str) -> bool:
    """True after a batch that was longer: the next shorter one brings the first frequencies back."""
    if kind == "longrope":
        return module.inv_freq is getattr(module, "long_inv_freq", None)
    held = vars(module)
    return bool(held["max_seq_len_cached"] > held["original_max_seq_len"])


def _of_config(module: nn.Module, config: dict[str, Any], head_dim: int) -> tuple[torch.Tensor | None, float]:
    """The frequencies and the scale of cosine and sine that the configuration gives now; None: not known.

    By transformers' own function or by ours.
    """
    kind = _kind(config)
    if kind == "default":
        return original_frequencies(_theta(config), head_dim), 1.0
    if kind == "linear":
        return original_frequencies(_theta(config), head_dim) / float(_scaling(config)["factor"]), 1.0
    if kind in _KNOWN:
        function = getattr(sys.modules.get(_UNITS), "ROPE_INIT_FUNCTIONS", {}).get(kind)
        name = getattr(function, "__name__", "")
        if function is not None and kind in name and is_defined_there(function, _UNITS, name):
            frequencies, scale = function(module.config, "cpu")
            return frequencies.float().cpu(), float(scale)
    return None, 1.0


def _same(expected: torch.Tensor, held: torch.Tensor, dtype: torch.dtype) -> bool:
    """True if these are the held frequencies, rounded to the type that the module holds them in."""
    import torch

    rounded = expected.to(dtype).float()
    return bool(expected.shape == held.shape and torch.allclose(rounded, held, rtol=_ROUNDING, atol=0.0))


def is_rounded(node: Node) -> bool:
    """True if model.to() has cast the frequencies to a type of fewer bits."""
    return tensor_of(node.module, "inv_freq").element_size() < 4


def _base_of(held: torch.Tensor, head_dim: int) -> float | None:
    """The base of unscaled frequencies, as a script would write it; None where they are none."""
    if len(held) < 2 or not 0 < float(held[1]) < 1:
        return None
    return float(f"{float(held[1].double() ** (-head_dim / 2)):.4g}")


def _scaling(config: dict[str, Any]) -> dict[str, Any]:
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def _theta(config: dict[str, Any]) -> float:
    return float(_scaling(config).get("rope_theta") or config.get("rope_theta") or 10000.0)


def _kind(config: dict[str, Any]) -> str:
    scaling = _scaling(config)
    return str(scaling.get("rope_type") or scaling.get("type") or "default")


def _settings(config: dict[str, Any], theta: float, factor: float | None) -> dict[str, Any]:
    kind: dict[str, Any] = (
        {"rope_type": "default"} if factor is None else {"rope_type": "linear", "factor": factor}
    )
    if "rope_parameters" in config:
        return {"rope_parameters": {**kind, "rope_theta": theta}}
    settings: dict[str, Any] = {}
    if theta != config.get("rope_theta", 10000.0):
        settings["rope_theta"] = theta
    if factor is not None or _scaling(config):
        settings["rope_scaling"] = None if factor is None else kind
    return settings
