"""Describes the rotation that a rotary module applies by engine settings."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

from fastsft.model.alterations.alteration import Alteration
from fastsft.model.alterations.library_code import CONDENSED
from fastsft.originals.functions import is_defined_there

if TYPE_CHECKING:
    import torch

# Relative tolerance: devices differ a little in float32 powers. Another base or factor differs by far more.
_ROUNDING = 2e-6
_KNOWN = ("default", "linear", "llama3", "yarn", "dynamic", "longrope")
_SWITCHING = ("dynamic", "longrope")  # types that use other frequencies for longer batches
_UNITS = "transformers.modeling_rope_utils"


def rotation_settings(
    module: Any, where: str, config: dict[str, Any], head_dim: int
) -> tuple[dict[str, Any], list[Alteration]]:
    """Return settings that replace those in `config`, and alterations that no setting can describe.

    There are no settings if `config` already yields the module's frequencies. Otherwise, the settings are the
    first of these that yields exactly the module's frequencies: unscaled positions, another base, or one
    linear factor. where: the module's path, for messages.
    """
    kind, bits = getattr(module, "rope_type", "default"), module.inv_freq.dtype
    if kind == _kind(config) and kind not in _KNOWN:  # the engine itself rejects such a configuration
        return {}, []
    given = _frequencies(module, kind)
    scale = float(getattr(module, "attention_scaling", 1.0))
    expected, native_scale = _of_config(module, config, head_dim)
    is_scaled = math.isclose(scale, native_scale, rel_tol=_ROUNDING)
    is_expected = expected is not None and _same(expected, given, bits)
    if not is_scaled and (is_expected or scale != 1.0):
        return {}, [Alteration(f"{where}.attention_scaling", f"is {scale}", f"{native_scale}", CONDENSED)]
    # These types change the frequencies with the batch's length, which no setting can describe.
    if kind != _kind(config) and kind in _SWITCHING:
        return {}, [Alteration(f"{where}.rope_type", f"is {kind!r}", f"{_kind(config)!r}", CONDENSED)]
    if is_expected:
        return {}, []
    for theta in (_theta(config), _base_of(given, head_dim)):
        if theta is not None and _same(_unscaled(theta, head_dim), given, bits):
            return _settings(config, theta, None), []
    theta = _theta(config)
    factor = float(f"{1.0 / max(float(given[0]), 1e-30):.6g}") if len(given) else 0.0
    if factor > 0 and _same(_unscaled(theta, head_dim) / factor, given, bits):
        return _settings(config, theta, factor), []
    return {}, [
        Alteration(
            f"{where}.inv_freq", f"starts {[round(float(value), 6) for value in given[:3]]}",
            f"rope {_kind(config)!r} of base {theta:g}", CONDENSED,
        )
    ]  # fmt: skip


def _unscaled(theta: float, head_dim: int) -> torch.Tensor:
    """Return theta ** (-2i / head_dim): float32 [head_dim / 2]."""
    import torch

    return 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim))


def _frequencies(module: Any, kind: str) -> torch.Tensor:
    """Return the frequencies for batches up to the original maximum length, as float32 [head_dim / 2]."""
    first = getattr(module, "original_inv_freq", None)
    is_switched = kind in _SWITCHING and first is not None and _has_switched(module, kind)
    frequencies: torch.Tensor = module.original_inv_freq if is_switched else module.inv_freq
    return frequencies.detach().float().cpu()


def _has_switched(module: Any, kind: str) -> bool:
    """Return True if a long batch has changed the frequencies. The next shorter batch restores them."""
    if kind == "longrope":
        return module.inv_freq is getattr(module, "long_inv_freq", None)
    return bool(module.max_seq_len_cached > module.original_max_seq_len)


def _of_config(module: Any, config: dict[str, Any], head_dim: int) -> tuple[torch.Tensor | None, float]:
    """Return the frequencies and the attention scale that `config` yields.

    The frequencies are None if unknown.
    """
    kind = _kind(config)
    if kind == "default":
        return _unscaled(_theta(config), head_dim), 1.0
    if kind == "linear":
        return _unscaled(_theta(config), head_dim) / float(_scaling(config)["factor"]), 1.0
    if kind in _KNOWN:
        function = getattr(sys.modules.get(_UNITS), "ROPE_INIT_FUNCTIONS", {}).get(kind)
        name = getattr(function, "__name__", "")
        if function is not None and kind in name and is_defined_there(function, _UNITS, name):
            frequencies, scale = function(module.config, "cpu")
            return frequencies.float().cpu(), float(scale)
    return None, 1.0


def _same(expected: torch.Tensor, given: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return True if the module has the expected frequencies, rounded to the module's dtype."""
    import torch

    rounded = expected.to(dtype).float()
    return bool(expected.shape == given.shape and torch.allclose(rounded, given, rtol=_ROUNDING, atol=0.0))


def _base_of(given: torch.Tensor, head_dim: int) -> float | None:
    """Return the base for unscaled frequencies, rounded as a script would write it; None if scaled."""
    if len(given) < 2 or not 0 < float(given[1]) < 1:
        return None
    return float(f"{float(given[1].double() ** (-head_dim / 2)):.4g}")


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
