"""LoraSettings: the fields in peft's LoraConfig that fastsft supports. Other fields raise errors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BIASES = ("none", "all", "lora_only")
_TASKS = (None, "CAUSAL_LM")
_BY_PEFT = "train with peft and transformers' Trainer"
# Fields of LoraConfig that change the computation and are not supported, with the advice for the error
# message.
_REFUSED = {
    "use_dora": "leave it out (DoRA is not in), or " + _BY_PEFT,
    "lora_bias": "leave it out: the B of an adapter has no bias here",
    "layer_replication": "write the model with its layers repeated first, or " + _BY_PEFT,
    "trainable_token_indices": 'name "embed_tokens" in modules_to_save, which trains all rows',
    "ensure_weight_tying": "leave it out: tied embeddings stay frozen",
    "megatron_config": _BY_PEFT,
    "alora_invocation_tokens": _BY_PEFT,
    "use_qalora": _BY_PEFT,
    "eva_config": "take init_lora_weights True",
    "corda_config": "take init_lora_weights True",
    "lora_ga_config": "take init_lora_weights True",
    "loftq_config": "take init_lora_weights True",
    "kasa_config": _BY_PEFT,
    "velora_config": _BY_PEFT,
    "monteclora_config": _BY_PEFT,
    "use_bdlora": _BY_PEFT,
    "arrow_config": _BY_PEFT,
}
# Fields without effect on the computation. peft sets fan_in_fan_out to True for Conv1D (GPT-2) and to False
# for all other layers, whatever the configuration says. fastsft does so, too.
_SILENT = frozenset(
    {
        "peft_type", "task_type", "auto_mapping", "base_model_name_or_path", "revision", "inference_mode",
        "peft_version", "megatron_core", "qalora_group_size", "runtime_config", "fan_in_fan_out",
    }
)  # fmt: skip
_WITHOUT_VALUES = (None, False, "", 0)


@dataclass(frozen=True)
class LoraSettings:
    """The supported fields from peft's LoraConfig, with its defaults.

    r, lora_alpha: each adapter's rank and alpha, unless `rank_pattern` or `alpha_pattern` gives another
    value.
    target_modules: names or endings of linear layers, a regular expression, or "all-linear"; None for q_proj
    and v_proj.
    target_parameters: names or endings of parameters outside linear layers, such as experts (generic engine).
    modules_to_save: endings of modules whose parameters are all trained.
    base_model: the base model's name, recorded for people who read the file.

    ValueError for a value that peft or fastsft rejects.
    """

    r: int = 8
    lora_alpha: float = 8
    lora_dropout: float = 0.0
    target_modules: tuple[str, ...] | str | None = None
    target_parameters: tuple[str, ...] | None = None
    exclude_modules: tuple[str, ...] | str | None = None
    bias: str = "none"
    use_rslora: bool = False
    modules_to_save: tuple[str, ...] | None = None
    init_lora_weights: bool | str = True
    layers_to_transform: tuple[int, ...] | int | None = None
    layers_pattern: tuple[str, ...] | str | None = None
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    base_model: str | None = None

    def __post_init__(self) -> None:
        _check_numbers(self)
        if self.bias not in BIASES:
            raise ValueError(f"bias: expected one of {', '.join(BIASES)}, got {self.bias!r}")
        if self.init_lora_weights not in (True, False, "gaussian"):
            raise ValueError(
                f"init_lora_weights: expected True, False or gaussian, got {self.init_lora_weights!r}: "
                "fastsft draws adapters and changes no base weights; take True"
            )
        if isinstance(self.target_modules, str):
            for name in ("layers_to_transform", "layers_pattern"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name}: cannot be used when target_modules is a string (peft's rule)")
        if self.layers_pattern and self.layers_to_transform is None:
            raise ValueError("layers_pattern: layers_to_transform must be given as well (peft's rule)")

    @classmethod
    def from_config(cls, config: Mapping[str, Any], where: str) -> LoraSettings:
        """Read the fields of a LoraConfig or adapter_config.json.

        where: message prefix. ValueError for other adapter kinds, for fields that fastsft does not
        support, and for wrong types.
        """
        _check_kind(config, where)
        supported = {item.name for item in dataclasses.fields(cls)} - {"base_model"}
        for name, value in config.items():
            unknown = name not in supported and name not in _SILENT
            if unknown and value not in _WITHOUT_VALUES and value not in ([], {}, (), set()):
                way_out = _REFUSED.get(name, "leave it out, or " + _BY_PEFT)
                raise ValueError(f"{where}: {name}: expected {_nothing(value)}, got {value!r}; {way_out}")
        values: dict[str, Any] = {
            name: _checked(name, config[name], where) for name in supported & config.keys()
        }
        base = config.get("base_model_name_or_path")
        try:
            return cls(**values, base_model=base if isinstance(base, str) else None)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None

    def to_config(self) -> dict[str, Any]:
        """Return adapter_config.json's fields. peft uses defaults for missing fields."""
        fields = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        base = fields.pop("base_model")
        if not self.target_parameters:
            del fields["target_parameters"]  # peft before 0.17 rejects the field
        fields = {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
        return {
            **fields,
            "rank_pattern": dict(self.rank_pattern),
            "alpha_pattern": dict(self.alpha_pattern),
            "auto_mapping": None,
            "base_model_name_or_path": base,
            "fan_in_fan_out": False,
            "inference_mode": True,
            "peft_type": "LORA",
            "revision": None,
            "task_type": "CAUSAL_LM",
            "use_dora": False,
        }

    def of_base(self, base_model: str) -> LoraSettings:
        """Return a copy with `base_model` as the base model's name."""
        return dataclasses.replace(self, base_model=base_model)

    def scale(self, rank: int, alpha: float) -> float:
        """Return an adapter's scale: alpha / r, or for rsLoRA alpha / sqrt(r)."""
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank


def _check_kind(config: Mapping[str, Any], where: str) -> None:
    kind = getattr(config.get("peft_type"), "value", config.get("peft_type"))
    if kind != "LORA":
        raise ValueError(f"{where}: peft_type: expected LORA, got {kind!r}; other adapters are peft's alone")
    task = getattr(config.get("task_type"), "value", config.get("task_type"))
    if task not in _TASKS:
        raise ValueError(f"{where}: task_type: expected CAUSAL_LM, got {task!r}")


def _nothing(value: object) -> str:
    return "False" if isinstance(value, bool) else "nothing"


_TEXTS = ("target_modules", "target_parameters", "exclude_modules", "layers_pattern", "modules_to_save")


def _checked(name: str, value: object, where: str) -> object:
    """Convert a value from JSON or a LoraConfig to the field's type. ValueError if it has another type."""
    if name in _TEXTS and isinstance(value, list | tuple | set | frozenset):
        if not all(isinstance(item, str) for item in value):
            raise ValueError(f"{where}: {name}: expected names, got {value!r}")
        return tuple(value) if isinstance(value, list | tuple) else tuple(sorted(value))
    if name in ("rank_pattern", "alpha_pattern"):
        return _pattern(name, value, where)
    if name == "layers_to_transform" and isinstance(value, list | tuple):
        if not all(isinstance(item, int) for item in value):
            raise ValueError(f"{where}: {name}: expected numbers of layers, got {value!r}")
        return tuple(value) or None
    expected = _TYPES.get(name, ())
    if value is None and name not in _NEVER_NONE:
        return None
    if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
        kinds = " or ".join(kind.__name__ for kind in expected)
        raise ValueError(
            f"{where}: {name}: expected {kinds or 'nothing'}, got {type(value).__name__} {value!r}"
        )
    return value


_TYPES: dict[str, tuple[type, ...]] = {
    "r": (int,),
    "lora_alpha": (int, float),
    "lora_dropout": (int, float),
    "bias": (str,),
    "use_rslora": (bool,),
    "init_lora_weights": (bool, str),
    "layers_to_transform": (int,),
    "target_modules": (str,),
    "exclude_modules": (str,),
    "layers_pattern": (str,),
}
_NEVER_NONE = ("r", "lora_alpha", "lora_dropout", "bias", "use_rslora", "init_lora_weights")


def _pattern(name: str, value: object, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    numbers = (int,) if name == "rank_pattern" else (int, float)
    if not isinstance(value, Mapping) or not all(
        isinstance(key, str) and isinstance(number, numbers) and not isinstance(number, bool)
        for key, number in value.items()
    ):
        raise ValueError(f"{where}: {name}: expected names and numbers, got {value!r}")
    return dict(value)


def _check_numbers(settings: LoraSettings) -> None:
    ranks = {"r": settings.r, **{f"rank_pattern {key}": rank for key, rank in settings.rank_pattern.items()}}
    for name, rank in ranks.items():
        if rank <= 0:
            raise ValueError(f"{name}: expected at least 1, got {rank}")
    alphas = {"lora_alpha": settings.lora_alpha} | {
        f"alpha_pattern {key}": alpha for key, alpha in settings.alpha_pattern.items()
    }
    for name, alpha in alphas.items():
        if not math.isfinite(alpha):
            raise ValueError(f"{name}: expected a number, got {alpha}")
    if not 0 <= settings.lora_dropout < 1:
        raise ValueError(f"lora_dropout: expected 0 or more and less than 1, got {settings.lora_dropout}")
