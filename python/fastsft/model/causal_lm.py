"""CausalLM: a model directory with its configuration and, after `build`, the engine that trains it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fastsft.arguments import TrainingArguments
from fastsft.arguments.engine_flags import state_options, warn_of_other_layer_class
from fastsft.arguments.from_transformers import says
from fastsft.model.alterations.check import check_patches
from fastsft.model.attention_kernel import Choice, select_attention_kernel, use_attention_kernel
from fastsft.model.config import read_generation_config
from fastsft.model.context_length import check_row_lengths, check_switch_length, extend_positions
from fastsft.model.family import (
    CAP,
    DEFAULT_ATTENTION,
    as_computed,
    check_family,
    padding_row,
    tell_ignored_cap,
    ties_embeddings,
)
from fastsft.model.hooks import AdapterHooks, GenericHooks, ObjectHooks
from fastsft.model.model_config import ModelConfig, config_of_directory, model_directory
from fastsft.model.native_support import check_dropout
from fastsft.model.stored_weights import HEAD, StoredForm, StoredWeights, UnitLayout, WeightForm, source_dtype
from fastsft.model.weights import load_weights
from fastsft.originals.snapshots import WatchedNames
from fastsft.planning.gpus import gpu_of
from fastsft.planning.memory_plan import EngineSettings
from fastsft.ranks.process_group import Groups
from fastsft.runtime.given_types import explain_missing, explained_call
from fastsft.runtime.launch import launch, threads_per_rank
from fastsft.runtime.ways_out import with_way_out

if TYPE_CHECKING:
    import torch

    from fastsft import _C


_T = TypeVar("_T")


class CausalLM(ObjectHooks, AdapterHooks, GenericHooks):
    """A causal language model in a directory. Its weights are read when the engine is built.

    engine_kind: "native", or "generic" if transformers computes the model's forward and backward passes.
    """

    engine_kind = "native"
    engine_given = "auto"  # the --engine value
    runs_code = False  # True if --trust_remote_code runs the directory's code

    def __init__(self, source_directory: Path, config: ModelConfig) -> None:
        # Absolute, because the script may call os.chdir later.
        path = Path(source_directory)
        self.source_directory = path.absolute() if path.is_dir() else path
        self.config = config
        self.engine: _C.Engine | None = None
        self._options: dict[str, Any] = {}
        self.recompute = "selective"
        self.attention: Choice | None = None
        self._generation_settings: dict[str, Any] | None = None
        self._has_generation_settings = False
        self._weights_dtype: str | None = None
        # The embedding's padding row, kept here because scripts change config.pad_token_id later, for
        # generation.
        self._padding_idx = padding_row(config)
        self._training = False
        self._places: WatchedNames | None = None

    @classmethod
    @explained_call
    def from_pretrained(
        cls, model_name_or_path: str, *, config: ModelConfig | None = None, cache_dir: str | None = None
    ) -> CausalLM:
        """Open a model directory or a hub model. ValueError if config.json is missing or not JSON."""
        directory = model_directory(model_name_or_path, cache_dir)
        if config is None:
            config = config_of_directory(directory)
        if cls.engine_kind == "native":
            check_family(config, directory)
        model = cls(directory, config)
        model.generation_settings()  # raises errors in generation_config.json before training
        return model

    if not TYPE_CHECKING:  # a type checker finds such names itself

        def __getattr__(self, name: str) -> object:
            more = (
                "Trainer.save_model writes a directory that transformers' "
                "AutoModelForCausalLM.from_pretrained opens, with more methods"
            )
            return explain_missing(self, name, more)

    def check_as_given(self, caller: str, training: bool) -> None:
        """Raise ValueError if settings or patches would make transformers train a different model.

        caller: message prefix. training: True if training follows, so that dropout matters.
        """
        if training:
            check_dropout(self.config, f"{self.source_directory / 'config.json'}", caller)
        self._places = check_patches(str(self.config.get("model_type")), caller)

    def library_has_changed(self) -> bool:
        """Return True if a script has patched torch or transformers since `check_as_given`."""
        return self._places is not None and self._places.changed()

    @property
    def training(self) -> bool:
        """True from the beginning of `train`, False in evaluations, as in transformers' Trainer."""
        return self._training

    def set_mode(self, *, training: bool) -> None:
        """Set the mode, as transformers' Trainer does."""
        self._training = training

    def is_sharded(self) -> bool:
        return launch().world_size > 1 and self._options["engine"]["state"].strategy != "no_shard"

    def engine_config(self) -> dict[str, Any]:
        """Return the configuration that the engine computes."""
        return as_computed({**self.config, "pad_token_id": self._padding_idx}, DEFAULT_ATTENTION)

    def build(
        self,
        args: TrainingArguments,
        groups: Groups,
        recompute: str = "selective",
        chosen: Mapping[str, Any] | None = None,
    ) -> _C.Engine:
        """Make the engine for `args` and load the weights. Collective.

        recompute: the memory plan's recompute policy, used if `args` have "auto". chosen: state options that
        the memory plan chose.

        After training, or if the options differ, a new engine replaces the old engine. It starts with a fresh
        optimizer and with the trained weights, which pass through every rank's memory in float32.
        """
        options = self._engine_options(args, groups, recompute)
        options["engine"]["state"] = options["engine"]["state"].replace(**(chosen or {}))
        if self.engine is not None and self.engine.step_count == 0 and options == self._options:
            return self.engine
        self._check_layer_class(args.fsdp_transformer_layer_cls_to_wrap)
        trained = self._take_weights()
        self.engine = self._new_engine(options["engine"])
        self._options, self.recompute = options, options["engine"]["recompute"]
        self.attention = select_attention_kernel(args, self, self.engine)
        self.weights_dtype()
        if trained is None:
            self.load_weights(self.engine)
        else:
            self._put_weights(self.engine, trained)
        return self.engine

    @property
    def attention_kernel(self) -> str | None:
        """The attention kernel's name; None before `build`, or if --attention_kernel does not apply."""
        return self.attention.name if self.attention else None

    def restore_attention_kernel(self, name: str) -> bool:
        """Use a checkpoint's kernel `name`.

        Return False if this kernel's results are wrong on this GPU.
        """
        if self.engine is None or self.attention is None or (name == "cudnn" and not self.attention.agrees):
            return False
        use_attention_kernel(self.engine, name)
        self.attention = self.attention._replace(name=name)
        return True

    def follow_plan(self, chosen: Mapping[str, Any]) -> None:
        """Set `sync_each_batch` and `tile_tokens` of the built engine, from the next step on.

        chosen: state options that the memory plan chose.
        """
        if self.engine is None:
            return
        was = self._options["engine"]["state"]
        self._options["engine"]["state"] = state = was.replace(**chosen)
        if state.sync_each_batch != was.sync_each_batch:
            self.engine.set_sync_each_batch(state.sync_each_batch)
        self.engine.set_tile_tokens(state.tile_tokens)

    def _put_weights(self, engine: _C.Engine, weights: Mapping[str, torch.Tensor]) -> None:
        for name, value in weights.items():
            engine.set_parameter(name, value)
        engine.publish()

    def _new_engine(self, options: dict[str, Any]) -> _C.Engine:
        from fastsft import _C

        config = self.engine_config()
        if config.get(CAP) is None:
            tell_ignored_cap(self.config, DEFAULT_ATTENTION)
        check_switch_length(self.switch_length(), options["max_positions"])
        return _C.Engine(json.dumps(config), **options)

    def _check_layer_class(self, named: str | None) -> None:
        warn_of_other_layer_class(str(self.config.get("model_type")), named)

    def load_weights(self, engine: _C.Engine) -> None:
        """Fill the engine with the initial weights. Collective."""
        try:
            load_weights(engine, str(self.source_directory))
        except ValueError as error:
            if "tensors that the model does not have" not in str(error):
                raise
            raise ValueError(f"{error}; --engine generic keeps such tensors as they are") from None

    def load_checkpoint_weights(self, engine: _C.Engine, directory: str) -> None:
        """Fill the engine with the checkpoint's weights in `directory`. Collective."""
        load_weights(engine, directory)

    def trained_order(self, engine: _C.Engine) -> list[tuple[str, bool]]:
        """Return (name, has weight decay) for each trained tensor, in transformers' parameter order."""
        from fastsft import _C

        return list(_C.trained_order(engine))

    def weights_dtype(self) -> str:
        """Return the initial weights' dtype: float32, bfloat16 or float16."""
        if self._weights_dtype is None:  # cached, because the source may be gone when the model is saved
            self._weights_dtype = source_dtype(self.source_directory, self.config)
        return self._weights_dtype

    def generation_settings(self) -> dict[str, Any] | None:
        """Return generation_config.json as read when the model was opened; None if the source has none."""
        if not self._has_generation_settings:
            self._generation_settings = read_generation_config(self.source_directory)
            self._has_generation_settings = True
        return self._generation_settings

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return all tensors by name, gathered in float32 on every rank. Collective.

        `trainer.save_model()` needs less memory. ValueError before a Trainer has built the engine.
        """
        if self.engine is None:
            raise ValueError(f"{self.source_directory}: no weights yet: a Trainer loads them when it is made")
        return dict(self.engine.named_parameters())

    def memory_setting(self, args: TrainingArguments) -> EngineSettings:
        """Return the settings that determine a rank's memory."""
        return EngineSettings(
            json.dumps(self.engine_config()),
            state_options(args),
            args.world_size,
            args.device.type,
            threads=threads_per_rank(),
            node_size=args.node_size,
            gpu=gpu_of(args.device),
            attention_kernel=args.attention_kernel,
        )

    def parameter_shapes(self) -> list[tuple[str, list[int]]]:
        """Return every parameter's name and shape, in unit order.

        ValueError if the configuration is wrong.
        """
        from fastsft import _C

        return list(self._of_config(_C.parameter_shapes))

    def _of_config(self, function: Callable[[str], _T]) -> _T:
        """Return what the core makes of the configuration. ValueError, with its file, if it is wrong."""
        try:
            return function(json.dumps(self.engine_config()))
        except ValueError as error:
            told = with_way_out(str(error), "correct it, or copy or download it again")
            raise ValueError(f"{self.source_directory}/{told}") from None

    def unit_layouts(self) -> Sequence[UnitLayout]:
        """Return each unit's layout: name, digest or None, size, and tensors (name, shape, first
        element).
        """
        from fastsft import _C

        return list(self._of_config(_C.unit_layouts))

    def vocab_size(self) -> int:
        """Return the embedding's row count."""
        return int(self.config.get("vocab_size", 0))

    def tied_names(self) -> list[str]:
        """Return the names that tied tensors have in files."""
        return [HEAD] if ties_embeddings(self.config) else []

    def extend_context(self, max_length: int) -> str | None:
        """Scale the configuration's RoPE if `max_length` exceeds the model's positions.

        Return a notice about the scaling, or None. ValueError if such long rows cannot be trained.
        """
        notice = extend_positions(self.config, max_length, in_table=self.positions_in_table())
        if notice is None:
            check_switch_length(self.switch_length(), max_length)
        return notice

    def switch_length(self) -> int | None:
        """Return the row length above which rotary frequencies depend on the batch; None without a limit."""
        from fastsft import _C

        return self._of_config(_C.rotary_frequencies)[2] or None

    def check_rows(
        self, dataset: _C.TokenDataset, numbers: list[int] | None = None, *, training: bool = True
    ) -> None:
        """Raise ValueError, naming the row, if the model cannot read a row in `dataset`.

        numbers: row numbers in the user's data, for messages. training: True to skip rows without targets.
        """
        check_row_lengths(self.switch_length(), dataset, numbers, training=training)

    def stored_form(self, stored: StoredWeights) -> WeightForm:
        """Compare the tensors in the weight files `stored` with this model's tensors."""
        return StoredForm(self.parameter_shapes(), stored, ties=ties_embeddings(self.config))

    def conversation_cost(self) -> tuple[float, ...]:
        """Return a conversation's operation count as two coefficients: linear and quadratic in its tokens."""
        from fastsft import _C

        return self._of_config(_C.conversation_cost)

    def _engine_options(self, args: TrainingArguments, groups: Groups, recompute: str) -> dict[str, Any]:
        engine = {
            "state": state_options(args),
            "device": str(args.device),
            # Longer than the process groups' timeout: their message, which names the failed collective, must
            # come first.
            "timeout_seconds": args.ddp_timeout + 15.0,
            "recompute": recompute if args.recompute_mode == "auto" else args.recompute_mode,
            "gather_group": groups.gather,
            "reduce_group": groups.reduce,
            "node_gather_group": groups.node_gather,
            "node_reduce_group": groups.node_reduce,
            "across_group": groups.across,
            "context_group": groups.context,
            "num_threads": threads_per_rank(),
            "max_positions": self._most_tokens(args),
        }
        config = {**self.engine_config(), "use_cache": None}
        return {"engine": engine, "config": config, "attention_kernel": args.attention_kernel}

    def _most_tokens(self, args: TrainingArguments) -> int:
        """Return the maximal row length.

        Without --model_max_length, this is at most the switch length, and `check_rows` reports longer rows.
        """
        if says(args, "model_max_length"):
            return args.model_max_length
        return min(args.model_max_length, self.switch_length() or args.model_max_length)

    def _take_weights(self) -> dict[str, torch.Tensor] | None:
        """Copy the engine's weights and drop the engine; return None without an engine."""
        if self.engine is None:
            return None
        weights = {name: value.clone() for name, value in self.engine.named_parameters().items()}
        self.engine = None
        return weights

    def num_parameters(self) -> int:
        """Return the parameter count; 0 before the engine is built."""
        return 0 if self.engine is None else int(self.engine.num_parameters)
