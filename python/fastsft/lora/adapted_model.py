"""AdaptedModel: a base model in the native engine, frozen, with LoRA adapters that are trained and saved."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fastsft.arguments import TrainingArguments
from fastsft.lora.adapter_files import AdapterDirectory, SavedAdapter, adapter_bytes, name_in_file
from fastsft.lora.settings import LoraSettings
from fastsft.lora.targets import Adapter, Targets, check_joined, resolve
from fastsft.model.causal_lm import CausalLM
from fastsft.model.weight_identity import sampled_digest, tensor_digests
from fastsft.planning.memory_plan import EngineSettings
from fastsft.ranks.exchange import AllOrNone
from fastsft.ranks.process_group import Groups, gather_objects
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import tell

if TYPE_CHECKING:
    import torch

    from fastsft import _C


class AdaptedModel(CausalLM):
    """The base model `model` with LoRA adapters.

    values: initial tensors by the engine's names. If None, the adapters are initialized as peft does it after
    torch.manual_seed(seed). four_bits: True to store the linear weights in the base model's layers in 4 bits
    (QLoRA). ValueError if the settings match no module (targets.py).
    """

    def __init__(
        self,
        model: CausalLM,
        settings: LoraSettings,
        values: Mapping[str, torch.Tensor] | None = None,
        seed: int = 42,
        *,
        four_bits: bool = False,
    ) -> None:
        super().__init__(model.source_directory, model.config)
        self.generation_settings()
        self.settings = settings
        self.targets = self._find_targets()
        self.four_bits = four_bits
        self._base_weights: str | None = None
        self._given, self._seed, self._is_drawn = dict(values or {}), seed, values is None
        self._extra: dict[str, torch.Tensor] = {}

    @cached_property
    def _values(self) -> dict[str, torch.Tensor]:
        """Initial tensors, which are drawn when they are first needed: a plan of memory never needs them."""
        if not self._is_drawn:
            return self._given
        return initial_values(self.targets, self._seed, self.settings.init_lora_weights)

    @classmethod
    def from_adapter(
        cls, model: CausalLM, adapter: AdapterDirectory, settings: LoraSettings, *, four_bits: bool = False
    ) -> AdaptedModel:
        """Make a model that starts with a saved adapter's tensors.

        ValueError if they do not fit the base model.

        settings: the saved adapter's settings, with `model` as base model.
        """
        adapted = cls(model, settings, {}, four_bits=four_bits)
        adapted._convert(adapter)
        adapter.check(adapted.targets)
        adapter.check_replaced(adapted.targets, dict(model.parameter_shapes()), str(model.source_directory))
        adapted._values = {name: adapter.read(name) for name in adapted.targets.shapes()}
        adapted._use_extra_tensors(adapter)
        return adapted

    def _convert(self, adapter: AdapterDirectory) -> None:
        """Convert tensors that another transformers release saved to the installed release's form."""

    def _use_extra_tensors(self, adapter: AdapterDirectory) -> None:
        """Use the frozen tensors in the adapter's file instead of the base model's.

        ValueError for a tied head.
        """
        replaced, tied = adapter.replaced(self.targets), self.tied_names()
        extra = {name: adapter.stored(name) for name in replaced}
        for name in tied:
            value = extra.pop(name, None)
            if value is not None and not any(value.equal(other) for other in extra.values()):
                raise ValueError(
                    f"{adapter.file}: {name}: expected the values of the embedding, to which it is tied in "
                    "this model, got others: give a base model with tie_word_embeddings false"
                )
        self._extra |= extra
        self._values |= extra

    def extra_tensors(self) -> Mapping[str, torch.Tensor]:
        """Return the frozen tensors that differ from the base model's and are saved with the adapter."""
        return self._extra

    def broadcast_adapters(self) -> None:
        """Broadcast the adapters that rank 0 has initialized to all ranks, as DDP does. Collective.

        ValueError if adapters from files differ between ranks.
        """
        digests = gather_objects(self.initial_digest())
        if len(set(digests)) == 1:
            return
        if not self._is_drawn:
            raise ValueError(
                "--lora_weight_path: the adapter's tensors differ between ranks; give all the same"
            )
        self._values = gather_objects(self._values if launch().rank == 0 else {})[0]

    @property
    def initial(self) -> Mapping[str, torch.Tensor]:
        """Initial values for the trained tensors, and for frozen tensors that replace the base model's."""
        return self._values

    def load_weights(self, engine: _C.Engine) -> None:
        """Fill the engine with the base model's weights and the adapters. Collective."""
        super().load_weights(engine)
        put_values(engine, self._values)

    def load_checkpoint_weights(self, engine: _C.Engine, directory: str) -> None:
        """Load the adapter that was saved in `directory`. Collective."""
        adapter = AdapterDirectory(directory)
        adapter.check(self.targets)
        put_values(engine, {name: adapter.read(name) for name in self.targets.shapes()})
        self.load_extra_tensors(engine, directory)

    def load_extra_tensors(self, engine: _C.Engine, directory: str) -> None:
        agreement = AllOrNone(f"loading {directory}")
        agreement.attempt(lambda: self._use_extra_tensors(AdapterDirectory(directory)))
        agreement.settle(None)
        if self._extra:
            put_values(engine, self._extra)

    def adapter_bytes(self) -> int:
        return adapter_bytes(self.targets, self.extra_tensors())

    def adapter_to_save(self) -> SavedAdapter:
        """Return the trained tensors' current values, copied to every rank's memory. Collective."""
        assert self.engine is not None  # a save follows `build`
        return SavedAdapter(
            self.settings, self.targets, self.engine.trained_parameters(), self.extra_tensors()
        )

    def adapter_from_state_dict(self, state_dict: Mapping[str, torch.Tensor]) -> SavedAdapter:
        """Return the adapter for a `state_dict` with peft's names, which a script has gathered.

        ValueError if a tensor is missing.
        """
        return SavedAdapter(
            self.settings, self.targets, values_of(state_dict, self.targets), self.extra_tensors()
        )

    def adapter_facts(self) -> dict[str, Any]:
        """Return the adapter settings that must not change when a run resumes.

        The unit layout is checked apart.
        """
        linears = [
            [adapter.module, adapter.rank, adapter.scale, *([adapter.parameter] if adapter.parameter else [])]
            for adapter in self.targets.adapters
        ]
        return {
            "linears": linears,
            "dropout": self.targets.dropout,
            "trained": sorted(self.targets.trained),
            **({"base": "nf4"} if self.four_bits else {}),
        }

    def base_weights(self) -> str | None:
        """Return the frozen weights' identity, which checkpoints do not contain.

        Computed at the first call.

        None on ranks other than 0, and if files cannot be read.
        """
        if self._base_weights is None and launch().rank == 0:
            self._base_weights = sampled_digest(
                self.source_directory, [*self.tied_names(), *self.targets.trained]
            )
        return self._base_weights

    def initial_digest(self) -> str:
        return hashlib.sha256(str(sorted(tensor_digests(self._values.items()).items())).encode()).hexdigest()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return all trained tensors by their names in peft's files, gathered in float32. Collective."""
        if self.engine is None:
            raise ValueError(f"{self.source_directory}: no weights yet: a Trainer loads them when it is made")
        values = self.engine.trained_parameters()
        return {name_in_file(name, self.targets): value for name, value in values.items()}

    def memory_setting(self, args: TrainingArguments) -> EngineSettings:
        return self.with_adapters_of_engine(super().memory_setting(args))

    def with_adapters_of_engine(self, setting: EngineSettings) -> EngineSettings:
        setting = replace(setting, adapters=self._engine_adapters())
        return setting.with_state(frozen_dtype=frozen_dtype(four_bits=self.four_bits))

    def num_trained_parameters(self) -> int:
        """Return the trained parameter count."""
        return sum(map(math.prod, self.targets.shapes().values()))

    def _find_targets(self) -> Targets:
        targets = resolve(self.settings, self.engine_config())
        check_joined(targets)
        return targets

    def _engine_adapters(self) -> _C.AdapterOptions | None:
        return engine_adapters(self.targets)

    def _engine_options(self, args: TrainingArguments, groups: Groups, recompute: str) -> dict[str, Any]:
        options = super()._engine_options(args, groups, recompute)
        if self.targets.dropout:
            tell("lora_dropout: as many inputs are dropped as in peft, by other random numbers")
        if (adapters := self._engine_adapters()) is not None:
            options["engine"]["adapters"] = adapters
        state = options["engine"]["state"]
        options["engine"]["state"] = state.replace(frozen_dtype=frozen_dtype(four_bits=self.four_bits))
        return options

    def _take_weights(self) -> dict[str, torch.Tensor] | None:
        if self.engine is None:
            return None
        weights = {name: value.clone() for name, value in self.engine.trained_parameters().items()}
        self.engine = None
        return weights

    def _put_weights(self, engine: _C.Engine, weights: Mapping[str, torch.Tensor]) -> None:
        self.load_weights(engine)  # the frozen weights, from the directory
        put_values(engine, weights)


def engine_adapters(targets: Targets) -> _C.AdapterOptions:
    """Return the engine's options for `targets`."""
    from fastsft import _C

    linears = [
        _C.AdapterLinear(adapter.module, rank=adapter.rank, scale=adapter.scale)
        for adapter in targets.adapters
    ]
    return _C.AdapterOptions(linears=linears, dropout=targets.dropout, trained=list(targets.trained))


def frozen_dtype(*, four_bits: bool) -> str:
    """Return the dtype in which the engine keeps the frozen base model: "nf4" or "compute"."""
    return "nf4" if four_bits else "compute"


def put_values(engine: _C.Engine, values: Mapping[str, torch.Tensor]) -> None:
    """Set tensors in the engine. values: by the engine's names. Collective."""
    for name, value in values.items():
        engine.set_parameter(name, value)
    engine.publish()


def values_of(state_dict: Mapping[str, torch.Tensor], targets: Targets) -> dict[str, torch.Tensor]:
    """Return all trained tensors from a state_dict with peft's names. ValueError if one is missing."""
    values = {}
    for name in targets.shapes():
        stored = name_in_file(name, targets)
        if stored not in state_dict:
            raise ValueError(
                f"expected {stored} among the tensors that are saved; they have {_some(state_dict)}"
            )
        values[name] = state_dict[stored]
    return values


def _some(names: Collection[str]) -> str:
    first = ", ".join(list(names)[:2])
    return f"{first}{', ...' if len(names) > 2 else ''}" if names else "none"


def initial_values(
    targets: Targets, seed: int, init_lora_weights: bool | str = True
) -> dict[str, torch.Tensor]:
    """Return the float32 A and B of every adapter, as peft initializes them after `torch.manual_seed(seed)`.

    For each adapter, in module order, nn.Linear initializes A and B. Then A is drawn again (kaiming_uniform
    with a = sqrt(5), or for "gaussian" a normal distribution with standard deviation 1 / r), and B is set to
    zero. If init_lora_weights is False, nn.Linear's values stay. Source: peft.tuners.lora.layer, update_layer
    and reset_lora_parameters.
    """
    import torch

    values: dict[str, torch.Tensor] = {}
    with torch.random.fork_rng(devices=[]):  # keeps the process's random state
        torch.default_generator.manual_seed(seed)
        for adapter in targets.adapters:
            drawn = _draw(adapter, init_lora_weights)
            values.update(zip(adapter.shapes(), drawn, strict=True))
    return values


def _draw(adapter: Adapter, init_lora_weights: bool | str) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    a, b = (torch.empty(shape, dtype=torch.float32) for shape in adapter.shapes().values())
    torch.nn.init.kaiming_uniform_(a, a=math.sqrt(5))
    torch.nn.init.kaiming_uniform_(b, a=math.sqrt(5))
    if init_lora_weights == "gaussian":
        torch.nn.init.normal_(a, std=1 / adapter.rank)
    elif init_lora_weights:
        torch.nn.init.kaiming_uniform_(a, a=math.sqrt(5))
    if init_lora_weights:
        torch.nn.init.zeros_(b)
    return a, b
