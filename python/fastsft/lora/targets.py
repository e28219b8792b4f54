"""Matches LoRA settings with a model's modules, by peft's rules.

The result is the modules that get adapters, and the parameters that are trained themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fastsft.lora.modules import EMBEDDING, HEAD, Module, is_of_experts, modules_of
from fastsft.lora.settings import LoraSettings
from fastsft.model.family import ties_embeddings
from fastsft.runtime.messages import warn_once
from fastsft.runtime.near_names import nearest_text

ALL_LINEAR = "all-linear"
# Linear layers whose weights the engine joins to one matrix (csrc/model/linears.h).
_JOINED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_N = TypeVar("_N", int, float)
_DEFAULT_TARGETS = ("q_proj", "v_proj")  # peft's default for the native families


@dataclass(frozen=True)
class Adapter:
    """A linear layer's adapter: x A^T B^T times `scale`, with A [rank, inputs] and B [outputs, rank].

    module: the adapted module's name.
    is_transposed: True if the layer's weight is [inputs, outputs] (GPT-2's Conv1D).
    parameter: the adapted parameter's name, if the layer is not linear. peft nests one wrapper for each such
    parameter: the second parameter's adapter has the layer's name, and the first parameter's adapter has a
    name that ends in `base_layer`.
    experts: the first size of a parameter [experts, outputs, inputs]. Its A is [rank * experts, inputs]; its
    B is [outputs, rank * experts], with experts as the fastest index.
    """

    module: str
    rank: int
    scale: float
    inputs: int
    outputs: int
    is_transposed: bool = False
    parameter: str | None = None
    experts: int | None = None

    @property
    def layer(self) -> str:
        """The adapted module's name in the base model."""
        return self.module if self.parameter is None else re.sub(r"(\.base_layer)+$", "", self.module)

    @property
    def weight(self) -> str:
        """The adapted parameter's name."""
        return f"{self.layer}.{self.parameter or 'weight'}"

    @property
    def target(self) -> str:
        """Name that the keys of rank_pattern and alpha_pattern must match."""
        return self.module if self.parameter is None else self.weight

    def shapes(self) -> dict[str, tuple[int, int]]:
        """Return the A and B shapes by the engine's names."""
        ranks = self.rank * (self.experts or 1)
        return {
            f"{self.module}.lora_A.weight": (ranks, self.inputs),
            f"{self.module}.lora_B.weight": (self.outputs, ranks),
        }

    def weight_shape(self) -> tuple[int, ...]:
        """Return the adapted parameter's shape."""
        matrix = (self.inputs, self.outputs) if self.is_transposed else (self.outputs, self.inputs)
        return matrix if self.experts is None else (self.experts, *matrix)


@dataclass(frozen=True)
class Targets:
    """The tensors that a LoRA run trains.

    adapters: in peft's order.
    trained: names and shapes of the base model's own parameters that are trained.
    dropout: probability with which an adapter's input is dropped.
    """

    adapters: tuple[Adapter, ...]
    trained: Mapping[str, tuple[int, ...]]
    dropout: float

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return all trained tensors' shapes, by the engine's names."""
        shapes: dict[str, tuple[int, ...]] = {}
        for adapter in self.adapters:
            shapes.update(adapter.shapes())
        return {**shapes, **self.trained}

    @property
    def modules(self) -> list[str]:
        """Last parts of the adapted modules' names, without duplicates, such as q_proj."""
        names = (adapter.target.removesuffix(".weight") for adapter in self.adapters)
        return list(dict.fromkeys(name.rpartition(".")[2] for name in names))


def resolve(settings: LoraSettings, config: Mapping[str, Any]) -> Targets:
    """Find the linear layers and parameters that `settings` name.

    config: the model's config.json. ValueError if nothing matches, if a match is not linear, and for wrong
    regular expressions.
    """
    if settings.target_parameters:
        raise ValueError(
            f"LoRA: target_parameters: expected nothing with the native engine, got "
            f"{_listed(settings.target_parameters)}; name linear modules in target_modules"
        )
    modules = modules_of(config)
    try:
        matched = _matched(settings, modules)
        adapters = tuple(_adapter(settings, module) for module in matched)
        whole = _whole_modules(settings, modules, {module.name for module in matched}, config)
    except re.error as error:
        raise ValueError(
            f"LoRA: {error.pattern!r} is no regular expression: {error}; "
            "write one, as .*_proj, or the names of layers"
        ) from None
    trained = {
        f"{module.name}.{name}": shape
        for module in modules
        for name, shape in module.parameters.items()
        if module.name in whole or _trains_bias(settings.bias, name, module, matched)
    }
    return Targets(adapters, trained, settings.lora_dropout)


def names_experts(settings: LoraSettings, config: Mapping[str, Any]) -> bool:
    """Return True if `settings` name experts or routers of a mixture, or modules that are not in its files.

    peft's rules for them differ between releases of transformers, whose classes have other modules. True also
    without names: peft then has names of its own for each family.
    """
    if settings.target_modules is None or settings.target_parameters:
        return True
    modules = modules_of(config)
    targets, endings = _targets(settings, modules), settings.modules_to_save or ()
    names = [module.name for module in modules]
    try:
        matched = [name for name in names if _is_target(settings, targets, name)]
    except re.error:
        return False  # an error in either engine
    unknown = isinstance(targets, tuple) and not all(
        any(name == target or _ends_with(name, (target,)) for name in names) for target in targets
    )
    whole = [name for name in names if any(name.endswith(ending) for ending in endings)]
    return unknown or any(map(is_of_experts, [*matched, *whole]))


def check_joined(targets: Targets) -> None:
    """Raise ValueError if some weights in a joined matrix would be trained whole, and others would not.

    The engine joins q/k/v and gate/up to one matrix each, which it trains as a whole or not at all.
    """
    whole = {name.removesuffix(".weight") for name in targets.trained}
    for name in sorted(whole):
        parent, _, linear = name.rpartition(".")
        joined = next((group for group in _JOINED if linear in group), ())
        missing = [linear for linear in joined if f"{parent}.{linear}" not in whole]
        if missing:
            named = ", ".join(linear for linear in joined if linear not in missing)
            raise ValueError(
                f"LoRA: modules_to_save match {parent}.{named}, but not {', '.join(missing)}, and their "
                f"weights are one matrix here: name all of them ({' '.join(joined)}) in modules_to_save, or "
                "none"
            )


def _matched(settings: LoraSettings, modules: Sequence[Module]) -> list[Module]:
    targets = _targets(settings, modules)
    matched = [module for module in modules if _is_target(settings, targets, module.name)]
    if not matched:
        layers = settings.layers_to_transform
        about = f" with layers_to_transform {_listed(layers)}" if layers is not None else ""
        hint = joined_hint(settings.target_modules)
        if whole := [name for name in _target_names(settings) if name in (settings.modules_to_save or ())]:
            raise ValueError(
                f"LoRA: {_listed(whole)} stand in target_modules and in modules_to_save, and a module is "
                "adapted or trained whole; leave them out of one of the two"
            )
        without = f" without {_listed(settings.exclude_modules)}" if settings.exclude_modules else ""
        raise ValueError(
            f"LoRA: target_modules {_listed(settings.target_modules)}{about}{without} match no module of the "
            f"model; its linear layers are {', '.join(_endings(modules))} (all-linear: all of them){hint}"
        )
    if isinstance(settings.target_modules, tuple):
        excluded = [module.name for module in modules if _is_excluded(settings, module.name)]
        names = [*(module.name for module in matched), *excluded]
        for target in settings.target_modules:
            if target not in names and not any(_ends_with(name, (target,)) for name in names):
                warn_once(
                    f"LoRA: the target module {target} matches nothing; the model's linear layers are "
                    f"{', '.join(_endings(modules))}{nearest_text(target, _endings(modules))}"
                )
    for module in matched:
        if module.name == EMBEDDING:
            raise ValueError(
                f"LoRA: target_modules match {module.name}; fastsft has no adapters of embeddings: leave it "
                "out, or name it in modules_to_save, which trains it whole"
            )
        if not module.is_linear:
            raise ValueError(
                f"LoRA: target_modules match {module.name}, which is no linear layer (peft refuses it, too); "
                f"choose of {', '.join(_endings(modules))}"
            )
    return matched


def _target_names(settings: LoraSettings) -> Sequence[str]:
    return settings.target_modules if isinstance(settings.target_modules, tuple) else ()


def joined_hint(targets: object) -> str:
    """Return a hint for an error message if `targets` look like names without spaces; else ""."""
    if isinstance(targets, str):  # a regular expression
        joined = any(sign in targets for sign in "\"'") or (targets.startswith("[") and "," in targets)
    else:
        joined = isinstance(targets, tuple) and any("," in name or " " in name for name in targets)
    return "; write the names with spaces between them, each a word of its own" if joined else ""


def _targets(settings: LoraSettings, modules: Sequence[Module]) -> tuple[str, ...] | str:
    targets = _DEFAULT_TARGETS if settings.target_modules is None else settings.target_modules
    if isinstance(targets, str) and targets.lower() == ALL_LINEAR:
        return tuple(module.name for module in modules if module.is_linear and module.name != HEAD)
    return targets


def _is_target(settings: LoraSettings, targets: tuple[str, ...] | str, name: str) -> bool:
    # Source: peft's check_target_module_exists.
    if _is_excluded(settings, name):
        return False
    if isinstance(targets, str):
        return re.fullmatch(targets, name) is not None
    if name in targets:
        return True
    return _ends_with(name, targets) and _in_layers(settings, name)


def _is_excluded(settings: LoraSettings, name: str) -> bool:
    excluded = settings.exclude_modules
    if isinstance(excluded, str) and excluded:
        if re.fullmatch(excluded, name):
            return True
    elif excluded and (name in excluded or _ends_with(name, excluded)):
        return True
    return any(re.match(rf"(^|.*\.){whole}($|\..*)", name) for whole in settings.modules_to_save or ())


def _ends_with(name: str, endings: Iterable[str]) -> bool:
    return any(name.endswith(f".{ending}") for ending in endings)


def _in_layers(settings: LoraSettings, name: str) -> bool:
    layers, patterns = settings.layers_to_transform, settings.layers_pattern
    if layers is None:
        return True
    if not patterns:
        layer = re.match(r".*?\.[^.]*\.(?P<index>\d+)\.", name)
    else:
        expressions = (patterns,) if isinstance(patterns, str) else patterns
        matches = (re.match(rf"(?:^|.*?\.){pattern}\.(?P<index>\d+)\.", name) for pattern in expressions)
        layer = next((match for match in matches if match), None)
    numbers = (layers,) if isinstance(layers, int) else layers
    return layer is not None and int(layer["index"]) in numbers


def _adapter(settings: LoraSettings, module: Module) -> Adapter:
    rank = _of_pattern(settings.rank_pattern, module.name, settings.r)
    alpha = _of_pattern(settings.alpha_pattern, module.name, settings.lora_alpha)
    return Adapter(module.name, int(rank), settings.scale(int(rank), alpha), module.inputs, module.outputs)


def _of_pattern(pattern: Mapping[str, float], name: str, otherwise: float) -> float:
    """Return the value of the first key that matches the end of `name`; `otherwise` if none does.

    Source: peft's get_pattern_key.
    """
    key = next(_keys_of(pattern, name), name)
    return pattern.get(key, otherwise)


def _keys_of(pattern: Mapping[str, float], name: str) -> Iterator[str]:
    return (key for key in pattern if re.match(rf"(.*\.)?({key})$", name))


def with_unique_patterns(settings: LoraSettings, targets: Targets) -> LoraSettings:
    """Return settings that do not depend on the order of keys in their patterns, which files do not keep.

    If several keys in a pattern match a module with different values, each module gets its own key.
    """
    names = [adapter.target for adapter in targets.adapters]
    return replace(
        settings,
        rank_pattern=_unique_pattern(settings.rank_pattern, names),
        alpha_pattern=_unique_pattern(settings.alpha_pattern, names),
    )


def _unique_pattern(pattern: Mapping[str, _N], names: Sequence[str]) -> Mapping[str, _N]:
    keys = {name: list(_keys_of(pattern, name)) for name in names}
    if all(len({pattern[key] for key in matching}) <= 1 for matching in keys.values()):
        return pattern
    return {name: pattern[matching[0]] for name, matching in keys.items() if matching}


def _whole_modules(
    settings: LoraSettings, modules: Sequence[Module], adapted: set[str], config: Mapping[str, Any]
) -> set[str]:
    """Return the names of modules whose parameters are all trained. Source: peft's _set_trainable."""
    endings = settings.modules_to_save or ()
    matched = [module for module in modules if any(module.name.endswith(ending) for ending in endings)]
    for module in matched:
        if not module.parameters or module.name in adapted:
            reason = "has an adapter" if module.name in adapted else "has no parameters of its own"
            raise ValueError(
                f"LoRA: modules_to_save match {module.name}, which {reason}; name single layers, such as "
                "lm_head, embed_tokens or norm"
            )
        if ties_embeddings(config) and module.name in (HEAD, EMBEDDING):
            raise ValueError(
                f"LoRA: modules_to_save name {module.name}, which is tied in this model (peft would train a "
                "copy that no longer is); leave it out, or untie the model first"
            )
    if endings and not matched:
        every = dict.fromkeys(module.name.rpartition(".")[2] for module in modules if module.parameters)
        raise ValueError(
            f"LoRA: modules_to_save {_listed(endings)} match no module of the model; those with parameters "
            f"end with {', '.join(every)}"
        )
    return {module.name for module in matched}


def _trains_bias(bias: str, parameter: str, module: Module, adapted: Sequence[Module]) -> bool:
    return parameter == "bias" and (bias == "all" or (bias == "lora_only" and module in adapted))


def _endings(modules: Sequence[Module]) -> list[str]:
    return list(dict.fromkeys(module.name.rpartition(".")[2] for module in modules if module.is_linear))


def _listed(value: object) -> str:
    return repr(list(value) if isinstance(value, tuple) else value)
