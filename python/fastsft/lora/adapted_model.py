"""A model of a directory with adapters: the base model is frozen, the adapters are trained and saved."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastsft.arguments import TrainingArguments
from fastsft.lora.adapter_files import AdapterDirectory
from fastsft.lora.initial import initial_values
from fastsft.lora.names import name_in_file
from fastsft.lora.saved_adapter import SavedAdapter, adapter_bytes
from fastsft.lora.settings import LoraSettings
from fastsft.lora.targets import Targets, check_joined, resolve
from fastsft.model.causal_lm import CausalLM
from fastsft.model.weight_digests import tensor_digests
from fastsft.model.weight_sample import sampled_digest
from fastsft.planning.memory_plan import Setting
from fastsft.ranks.agreement import Agreement
from fastsft.ranks.process_group import Groups, gather_objects
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import tell

if TYPE_CHECKING:
    import torch

    from fastsft import _C


class AdaptedModel(CausalLM):
    """The base model `model` with adapters.

    settings: of LoRA. values: tensors that training begins with in place of the base's, by the engine's
    names; without them adapters are drawn as peft does after torch.manual_seed(seed) (initial.py).
    four_bits: linears of the base model's layers are held in 4 bits while it is trained (QLoRA).
    ValueError where the settings match nothing (targets.py).
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
        self._values, self._is_drawn = dict(values or {}), values is None
        self._along: dict[str, torch.Tensor] = {}
        if self._is_drawn:
            self._values = initial_values(self.targets, seed, settings.init_lora_weights)

    @classmethod
    def from_adapter(
        cls, model: CausalLM, adapter: AdapterDirectory, settings: LoraSettings, *, four_bits: bool = False
    ) -> AdaptedModel:
        """With the tensors of a directory of peft's or ours. ValueError for tensors that do not fit.

        settings: the adapter's, naming `model` as their base.
        """
        made = cls(model, settings, {}, four_bits=four_bits)
        made._fit(adapter)
        adapter.check(made.targets)
        adapter.check_replaced(made.targets, dict(model.parameter_shapes()), str(model.source_directory))
        made._values = {name: adapter.read(name) for name in made.targets.shapes()}
        made._take_along(adapter)
        return made

    def _fit(self, adapter: AdapterDirectory) -> None:
        """Bring tensors of another release of transformers into the form of this one."""

    def _take_along(self, adapter: AdapterDirectory) -> None:
        """Frozen tensors of an adapter count in place of the base model's. ValueError for a tied head."""
        replaced, tied = adapter.replaced(self.targets), self.tied_names()
        along = {name: adapter.stored(name) for name in replaced}
        for name in tied:
            value = along.pop(name, None)
            if value is not None and not any(value.equal(other) for other in along.values()):
                raise ValueError(
                    f"{adapter.file}: {name}: expected the values of the embedding, to which it is tied in "
                    "this model, got others: give a base model with tie_word_embeddings false"
                )
        self._along |= along
        self._values |= along

    def saved_along(self) -> Mapping[str, torch.Tensor]:
        """Frozen tensors that are saved with the adapter: the named base model has other values for them."""
        return self._along

    def take_first_adapters(self) -> None:
        """Adapters that rank 0 has drawn count on all ranks, as with DDP; collective.

        ValueError for adapters of files that differ.
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
        """The tensors that training begins with in place of the base's, or next to them."""
        return self._values

    def load_weights(self, engine: _C.Engine) -> None:
        """The base model's weights, then the adapters; collective."""
        super().load_weights(engine)
        put_values(engine, self._values)

    def load_saved(self, engine: _C.Engine, directory: str) -> None:
        """The tensors of an adapter that was saved in `directory`; collective."""
        adapter = AdapterDirectory(directory)
        adapter.check(self.targets)
        put_values(engine, {name: adapter.read(name) for name in self.targets.shapes()})
        self.load_saved_along(engine, directory)

    def load_saved_along(self, engine: _C.Engine, directory: str) -> None:
        """Frozen tensors that an adapter saved in `directory` has next to the trained ones; collective."""
        agreement = Agreement(f"loading {directory}")
        agreement.attempt(lambda: self._take_along(AdapterDirectory(directory)))
        agreement.settle(None)
        if self._along:
            put_values(engine, self._along)

    def adapter_bytes(self) -> int:
        """Of the files that are saved in place of a model."""
        return adapter_bytes(self.targets, self.saved_along())

    def adapter_to_save(self) -> SavedAdapter:
        """The trained tensors as they are now; collective, in the memory of every rank."""
        assert self.engine is not None  # built before there is something to save
        return SavedAdapter(self.settings, self.targets, self.engine.trained_parameters(), self.saved_along())

    def adapter_of(self, state_dict: Mapping[str, torch.Tensor]) -> SavedAdapter:
        """The adapter whose tensors a script has gathered, by peft's names. ValueError without one."""
        return SavedAdapter(
            self.settings, self.targets, values_of(state_dict, self.targets), self.saved_along()
        )

    def adapter_facts(self) -> dict[str, Any]:
        """Facts that must be the same when a run is resumed, beyond the layout of units."""
        linears = [
            [each.module, each.rank, each.scale, *([each.parameter] if each.parameter else [])]
            for each in self.targets.adapters
        ]
        return {
            "linears": linears,
            "dropout": self.targets.dropout,
            "trained": sorted(self.targets.trained),
            **({"base": "nf4"} if self.four_bits else {}),
        }

    def base_weights(self) -> str | None:
        """Identity of the frozen weights, which no checkpoint holds; None where they are not known.

        That is on all ranks but the first, and for files that cannot be read. Read once, at the first call.
        """
        if self._base_weights is None and launch().rank == 0:
            self._base_weights = sampled_digest(
                self.source_directory, [*self.tied_names(), *self.targets.trained]
            )
        return self._base_weights

    def initial_digest(self) -> str:
        """Of the tensors that training begins with."""
        return hashlib.sha256(str(sorted(tensor_digests(self._values.items()).items())).encode()).hexdigest()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Everything that is trained, by the names of peft's files, whole, in fp32; collective."""
        if self.engine is None:
            raise ValueError(f"{self.source_directory}: no weights yet: a Trainer loads them when it is made")
        values = self.engine.trained_parameters()
        return {name_in_file(name, self.targets): value for name, value in values.items()}

    def memory_setting(self, args: TrainingArguments) -> Setting:
        """As CausalLM's, with the adapters."""
        return self.with_adapters_of_engine(super().memory_setting(args))

    def with_adapters_of_engine(self, setting: Setting) -> Setting:
        """As CausalLM's."""
        setting = replace(setting, adapters=self._engine_adapters())
        return setting.with_state(frozen_dtype=frozen_dtype(four_bits=self.four_bits))

    def num_trained_parameters(self) -> int:
        """Parameters that are trained."""
        return sum(_count(shape) for shape in self.targets.shapes().values())

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
        """The base model's are those of the directory."""
        self.load_weights(engine)
        put_values(engine, weights)


def engine_adapters(targets: Targets) -> _C.AdapterOptions:
    """The engine's options."""
    from fastsft import _C

    linears = [_C.AdapterLinear(each.module, rank=each.rank, scale=each.scale) for each in targets.adapters]
    return _C.AdapterOptions(linears=linears, dropout=targets.dropout, trained=list(targets.trained))


def frozen_dtype(*, four_bits: bool) -> str:
    """The engine's option for the frozen base model."""
    return "nf4" if four_bits else "compute"


def put_values(engine: _C.Engine, values: Mapping[str, torch.Tensor]) -> None:
    """Tensors into the engine, by its names; collective."""
    for name, value in values.items():
        engine.set_parameter(name, value)
    engine.publish()


def values_of(state_dict: Mapping[str, torch.Tensor], targets: Targets) -> dict[str, torch.Tensor]:
    """The trained tensors of a state_dict in the names of peft's files. ValueError without one."""
    values = {}
    for name in targets.shapes():
        stored = name_in_file(name, targets)
        if stored not in state_dict:
            raise ValueError(
                f"expected {stored} among the tensors that are saved; they have {_some(state_dict)}"
            )
        values[name] = state_dict[stored]
    return values


def _some(names: Iterable[str]) -> str:
    found = list(names)
    return f"{', '.join(found[:2])}{', ...' if len(found) > 2 else ''}" if found else "none"


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
