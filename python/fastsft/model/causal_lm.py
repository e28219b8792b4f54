"""The model that a Trainer trains: a directory, its configuration and, once built, the engine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fastsft.arguments import TrainingArguments
from fastsft.arguments.from_transformers import says
from fastsft.arguments.sharding_arguments import warn_of_other_layer_class
from fastsft.model.attention_caps import CAP, DEFAULT_ATTENTION, as_computed, tell_left_out
from fastsft.model.attention_kernel import Choice, settle_attention_kernel, use_attention_kernel
from fastsft.model.config import read_generation_config, source_dtype
from fastsft.model.family import check_family, padding_row, ties_embeddings
from fastsft.model.fsdp_context import has_settings_of_fsdp
from fastsft.model.given_library import check_dropout, check_patches
from fastsft.model.hooks import AdapterHooks, ObjectHooks
from fastsft.model.model_config import ModelConfig, config_of_directory, stretch_positions
from fastsft.model.rotary_switch import check_row_lengths, check_switch_length
from fastsft.model.source import model_directory
from fastsft.model.stored_weights import HEAD, StoredForm, StoredTensor, StoredWeights, UnitLayout, WeightForm
from fastsft.model.weights import load_weights
from fastsft.originals.places import Places
from fastsft.planning.gpus import gpu_of
from fastsft.planning.memory_plan import Setting
from fastsft.planning.state_options import state_options
from fastsft.ranks.process_group import Groups
from fastsft.runtime.launch import launch, threads_per_rank

if TYPE_CHECKING:
    import torch
    from torch import nn

    from fastsft import _C
    from fastsft.model.generic.memory import ActivationSizes


def _set_reductions(options: dict[str, Any], *, each: bool) -> bool:
    """Set `sync_each_batch` in the engine options; return True if it changed."""
    state = options["engine"]["state"]
    options["engine"]["state"] = state.replace(sync_each_batch=each)
    return bool(state.sync_each_batch != each)


class CausalLM(ObjectHooks, AdapterHooks):
    """A causal language model on disk; its weights are read when the engine is built.

    engine_kind: native or generic, what computes its forward and backward.
    """

    engine_kind = "native"
    runs_code = False  # of its directory

    def __init__(self, source_directory: Path, config: ModelConfig) -> None:
        # Absolute: the script may call os.chdir later.
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
        # Of the embedding as it is built; scripts set the configuration's id for generation afterwards.
        self._padding_idx = padding_row(config)
        self._training = False
        self._places: Places | None = None

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str,
        *,
        config: ModelConfig | None = None,
        cache_dir: str | None = None,
    ) -> CausalLM:
        """Read config.json of a directory or hub model. ValueError when there is none, or it is no JSON."""
        directory = model_directory(model_name_or_path, cache_dir)
        if config is None:
            config = config_of_directory(directory)
        if cls.engine_kind == "native":
            check_family(config, directory)
        model = cls(directory, config)
        model.generation_settings()  # what is wrong with them is told before training, and read once
        return model

    def check_as_given(self, caller: str, training: bool) -> None:
        """Refuse a configuration or a patched transformers that would have trained another model.

        caller: what the message begins with. training: whether steps are to follow. ValueError by name.
        """
        if training:
            check_dropout(self.config, f"{self.source_directory / 'config.json'}", caller)
        self._places = check_patches(str(self.config.get("model_type")), caller)

    def library_has_changed(self) -> bool:
        """True if a script has patched what models reach of torch and transformers since `check_as_given`."""
        return self._places is not None and self._places.changed()

    @property
    def training(self) -> bool:
        """True from the begin of `train` on, but for evaluations: as transformers sets it."""
        return self._training

    def set_mode(self, *, training: bool) -> None:
        """Set `training`."""
        self._training = training

    def is_sharded(self) -> bool:
        """True if each rank has but a part of the engine's weights; once it is built."""
        return launch().world_size > 1 and self._options["engine"]["state"].strategy != "no_shard"

    def engine_config(self) -> dict[str, Any]:
        """The configuration that the engine computes by."""
        return as_computed({**self.config, "pad_token_id": self._padding_idx}, DEFAULT_ATTENTION)

    def build(
        self,
        args: TrainingArguments,
        groups: Groups,
        recompute: str = "selective",
        *,
        sync_each_batch: bool = True,
    ) -> _C.Engine:
        """Make the engine for the strategy and precision of `args` and load the weights; collective.

        recompute: what the backward pass computes again when the arguments leave it open. sync_each_batch: of
        the memory plan.

        After training, or for other options, a new engine takes the old one's place: it has the weights
        trained so far and a fresh optimizer. They pass through the memory of every rank, whole, in fp32.
        """
        options = self._engine_options(args, groups, recompute)
        _set_reductions(options, each=sync_each_batch)
        if self.engine is not None and self.engine.step_count == 0 and options == self._options:
            return self.engine
        self._check_layer_class(args.fsdp_transformer_layer_cls_to_wrap)
        trained = self._take_weights()
        self.engine = self._new_engine(options["engine"])
        self._options, self.recompute = options, options["engine"]["recompute"]
        self.attention = settle_attention_kernel(args, self, self.engine)
        self.weights_dtype()
        if trained is None:
            self.load_weights(self.engine)
        else:
            self._put_weights(self.engine, trained)
        return self.engine

    @property
    def attention_kernel(self) -> str | None:
        """The kernel of attention; None before the engine is built, and as `settle_attention_kernel`."""
        return self.attention.name if self.attention else None

    def keep_attention_kernel(self, name: str) -> bool:
        """Use the kernel `name` of a checkpoint; False where its results are not right here."""
        if self.engine is None or self.attention is None or (name == "cudnn" and not self.attention.agrees):
            return False
        use_attention_kernel(self.engine, name)
        self.attention = self.attention._replace(name=name)
        return True

    def reduce_each_batch(self, *, each: bool) -> None:
        """Gradients are reduced in every micro-batch from the next step on, else once a step."""
        if self.engine is not None and _set_reductions(self._options, each=each):
            self.engine.set_sync_each_batch(each)

    def _put_weights(self, engine: _C.Engine, weights: Mapping[str, torch.Tensor]) -> None:
        for name, value in weights.items():
            engine.set_parameter(name, value)
        engine.publish()

    def _new_engine(self, options: dict[str, Any]) -> _C.Engine:
        from fastsft import _C

        config = self.engine_config()
        if config.get(CAP) is None:
            tell_left_out(self.config, DEFAULT_ATTENTION)
        check_switch_length(self.switch_length(), options["max_positions"])
        return _C.Engine(json.dumps(config), **options)

    def _check_layer_class(self, named: str | None) -> None:
        warn_of_other_layer_class(str(self.config.get("model_type")), named)

    def load_weights(self, engine: _C.Engine) -> None:
        """Fill the engine with the weights that training starts from; collective."""
        try:
            load_weights(engine, str(self.source_directory))
        except ValueError as error:
            if "tensors that the model does not have" not in str(error):
                raise
            raise ValueError(f"{error}; --engine generic keeps such tensors as they are") from None

    def load_saved(self, engine: _C.Engine, directory: str) -> None:
        """Fill the engine with the model that a checkpoint holds; collective."""
        load_weights(engine, directory)

    def trained_order(self, engine: _C.Engine) -> list[tuple[str, bool]]:
        """(name, has weight decay) of what is trained, in the order of transformers' parameters."""
        from fastsft import _C

        return list(_C.trained_order(engine))

    def weights_dtype(self) -> str:
        """float32, bfloat16 or float16: the type of the weights that training starts from."""
        if self._weights_dtype is None:  # read once: the source may be gone when the model is saved
            self._weights_dtype = source_dtype(self.source_directory, self.config)
        return self._weights_dtype

    def generation_settings(self) -> dict[str, Any] | None:
        """generation_config.json of the source as it was when the model was opened; None without."""
        if not self._has_generation_settings:
            self._generation_settings = read_generation_config(self.source_directory)
            self._has_generation_settings = True
        return self._generation_settings

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Every tensor by name, whole, in fp32 and in the memory of every rank; collective.

        `trainer.save_model()` needs none of that. ValueError before a Trainer has built the engine.
        """
        if self.engine is None:
            raise ValueError(f"{self.source_directory}: no weights yet: a Trainer loads them when it is made")
        return dict(self.engine.named_parameters())

    def children(self) -> Iterator[nn.Module]:
        """None. torch's FSDP.state_dict_type looks for them, and finds its settings (fsdp_context.py)."""
        has_settings_of_fsdp(cast("nn.Module", self))  # torch's functions take any object
        return iter(())

    def memory_setting(self, args: TrainingArguments) -> Setting:
        """The settings that the bytes of a rank depend on."""
        return Setting(
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
        """(name, shape) of every parameter, in the order of the units. ValueError as the engine's."""
        from fastsft import _C

        return list(_C.parameter_shapes(json.dumps(self.engine_config())))

    def unit_layouts(self) -> Sequence[UnitLayout]:
        """Of each unit name, digest (None: not known), elements, and tensors: name, shape, first element."""
        from fastsft import _C

        return list(_C.unit_layouts(json.dumps(self.engine_config())))

    def vocab_size(self) -> int:
        """Rows of the embedding, by config.json."""
        return int(self.config.get("vocab_size", 0))

    def tied_names(self) -> list[str]:
        """Tensors that are another one, by their names in files."""
        return [HEAD] if ties_embeddings(self.config) else []

    def positions_in_table(self) -> bool:
        """True for positions that are rows of an embedding."""
        return False

    def settle_positions(self, longest: int) -> str | None:
        """Make room in the configuration for rows of `longest` tokens; a line about it, or None.

        ValueError where such rows cannot be trained, as `stretch_positions` and `check_switch_length`.
        """
        stretched = stretch_positions(self.config, longest, in_table=self.positions_in_table())
        if stretched is None:
            check_switch_length(self.switch_length(), longest)
        return stretched

    def switch_length(self) -> int | None:
        """Tokens up to which the rotary frequencies are the same for batches of every width; None: any."""
        from fastsft import _C

        return _C.rotary_frequencies(json.dumps(self.engine_config()))[2] or None

    def check_rows(
        self, native: _C.TokenDataset, numbers: list[int] | None = None, *, training: bool = True
    ) -> None:
        """ValueError for a row of the data set `native` that this model does not take.

        That is one beyond the positions at which its rotary frequencies change. numbers: of its rows, for
        messages. training: rows that teach nothing are not computed.
        """
        check_row_lengths(self.switch_length(), native, numbers, training=training)

    def stored_parts(self, name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors of the engine, and of files, that a parameter of transformers' model consists of.

        name: of the parameter; tensor: it, or another value of each of its elements, of which what is yielded
        is a view.
        """
        yield name, tensor

    def buffer_dtypes(self) -> dict[str, torch.dtype]:
        """Of tensors in the engine that are buffers of transformers' model, by name."""
        return {}

    def carried(self) -> list[StoredTensor]:
        """Tensors of the directory's files that are in no engine, and saved as they are."""
        return []

    def class_name(self) -> str | None:
        """Of transformers' model that computes; None: by the family."""
        return None

    def code_files(self) -> dict[str, str]:
        """Python files by name that a saved model needs to be opened."""
        return {}

    def stored_form(self, stored: StoredWeights) -> WeightForm:
        """Weight files next to this configuration."""
        return StoredForm(self.parameter_shapes(), stored, ties=ties_embeddings(self.config))

    def activation_sizes(self, dtype: str) -> ActivationSizes | None:
        """None: the engine plans its own memory. Of a generic model: what Setting's `called` takes."""
        return None

    def conversation_cost(self) -> tuple[float, ...]:
        """Operations of a conversation: a part linear and a part quadratic in its tokens."""
        from fastsft import _C

        return _C.conversation_cost(json.dumps(self.engine_config()))

    def _engine_options(self, args: TrainingArguments, groups: Groups, recompute: str) -> dict[str, Any]:
        engine = {
            "state": state_options(args),
            "device": str(args.device),
            # Later than the groups' own timeout, whose message names the collective's fault.
            "timeout_seconds": args.ddp_timeout + 15.0,
            "recompute": recompute if args.recompute_mode == "auto" else args.recompute_mode,
            "gather_group": groups.gather,
            "reduce_group": groups.reduce,
            "node_gather_group": groups.node_gather,
            "node_reduce_group": groups.node_reduce,
            "across_group": groups.across,
            "num_threads": threads_per_rank(),
            "max_positions": self._most_tokens(args),
        }
        config = {**self.engine_config(), "use_cache": None}
        return {"engine": engine, "config": config, "attention_kernel": args.attention_kernel}

    def _most_tokens(self, args: TrainingArguments) -> int:
        """Tokens of the longest row, as far as `args` say it; else rows beyond the switch are found later."""
        if says(args, "model_max_length"):
            return args.model_max_length
        return min(args.model_max_length, self.switch_length() or args.model_max_length)

    def _take_weights(self) -> dict[str, torch.Tensor] | None:
        """Copies of the weights of the engine, which is given up; None without one."""
        if self.engine is None:
            return None
        weights = {name: value.clone() for name, value in self.engine.named_parameters().items()}
        self.engine = None
        return weights

    def num_parameters(self) -> int:
        """Parameters of the model; 0 before the engine is built."""
        return 0 if self.engine is None else int(self.engine.num_parameters)
