"""FastChat's three argument classes with the names and defaults of transformers, old and new.

Which field does what: trainer_arguments.md, sections 2, 3 and 6. Also parsed by the real HfArgumentParser.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from fastsft.argument_views import ArgumentViews
from fastsft.data_sources import data_files
from fastsft.devices import choose_device
from fastsft.launcher import launch
from fastsft.model_directory import parse_size
from fastsft.notices import warn_once
from fastsft.profile import parse_steps
from fastsft.sharding_arguments import fsdp_settings, fsdp_tokens, strategy_of

Interval = Literal["no", "steps", "epoch"]
ScheduleName = Literal[
    "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup",
    "inverse_sqrt", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay",
]  # fmt: skip

_ADAMW = ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused")
# Parsed and kept, without effect: named once when they leave their default.
_NO_EFFECT = {
    "overwrite_output_dir": "a run resumes from the checkpoint that it finds; --no_resume starts afresh",
    "do_train": "the attribute is kept",
    "do_predict": "the attribute is kept",
    "fsdp_transformer_layer_cls_to_wrap": "the engine shards per decoder layer",
    "ddp_find_unused_parameters": "there is no DDP wrapper",
}
_AT_LEAST_ONE = (
    "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps",
    "model_max_length",
)  # fmt: skip
_QUIET = {"fsdp_transformer_layer_cls_to_wrap", "do_train"}  # part of every recipe: not worth a warning


def _about(text: str) -> dict[str, str]:
    return {"help": text}


@dataclass
class ModelArguments:
    """Which model to fine-tune."""

    model_name_or_path: str | None = field(
        default="facebook/opt-125m", metadata=_about("directory or hub name")
    )
    trust_remote_code: bool = field(
        default=False, metadata=_about("no effect for models with a native family")
    )
    padding_side: str = field(default="right", metadata=_about("right; written to the saved tokenizer"))


@dataclass
class DataArguments:
    """Which conversations to learn from."""

    data_path: str = field(
        default=None, metadata=_about("files of conversations: a.json,b.jsonl:0.5,c/*.parquet; - is stdin")
    )  # type: ignore[assignment]
    eval_data_path: str = field(default=None, metadata=_about("the same, for evaluation"))  # type: ignore[assignment]
    lazy_preprocess: bool = field(
        default=False, metadata=_about("keep the rows that were asked for; all are labelled at the start")
    )
    max_dropped: float = field(
        default=0.05, metadata=_about("stop above this fraction of samples without a label")
    )
    legacy_warnings: bool = field(default=False, metadata=_about("also print FastChat's line for each drop"))
    mask_policy: Literal["fastchat", "spans"] = field(
        default="fastchat",
        metadata=_about("fastchat: FastChat's labels, drops included; spans: every reply of any template"),
    )
    template: str | None = field(
        default=None,
        metadata=_about(
            "chat template by name, or model: its own; default with spans: model where it has one"
        ),
    )
    chat_template_name: str | None = field(
        default=None, metadata=_about("which of the model's named chat templates; default: default")
    )
    train_turns: Literal["all", "last"] = field(
        default="all", metadata=_about("which replies are learned (spans)")
    )
    role_map: str | None = field(
        default=None, metadata=_about("more names of roles in the data: name=user,name2=assistant")
    )
    role_aliases: bool = field(
        default=False, metadata=_about("accept user, assistant, chatgpt, ... too; always on with spans")
    )
    on_bad_sample: Literal["error", "skip", "repair"] | None = field(
        default=None,
        metadata=_about("records that FastChat cannot read; default error, with spans skip"),
    )
    check_data: bool = field(
        default=False, metadata=_about("label the data, print the report and stop before weights are loaded")
    )
    dump_masked: int = field(default=0, metadata=_about("print this many samples with learned text marked"))

    report_bad: str | None = field(
        default=None, metadata=_about("list bad records here, a line of JSON each: file, line, byte, reason")
    )
    data_cache: str | None = field(
        default=None, metadata=_about("where labelled data is kept, or none; default ~/.cache/fastsft")
    )

    def check_files(self) -> None:
        """ValueError when a file that is named does not exist, or none is named to train on."""
        for name, path in (("data_path", self.data_path), ("eval_data_path", self.eval_data_path)):
            try:
                _ = data_files(path) if path is not None else []
            except ValueError as error:
                raise ValueError(f"--{name}: {error}") from None
        if self.data_path is None:
            raise ValueError("--data_path: expected a file of conversations, got none")


@dataclass
class TrainingArguments(ArgumentViews):
    """How to train: the fields of transformers' class that fastsft implements, and its own at the end."""

    output_dir: str | None = field(default=None, metadata=_about("checkpoints and the final model"))
    overwrite_output_dir: bool = False
    do_train: bool = False
    do_eval: bool = False
    do_predict: bool = False
    evaluation_strategy: Literal["no", "steps", "epoch"] | None = None
    eval_strategy: Interval = "no"
    per_device_train_batch_size: int = field(default=8, metadata=_about("conversations of one micro-batch"))
    per_device_eval_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    eval_delay: float | None = 0
    learning_rate: float = field(default=5e-5, metadata=_about("peak learning rate"))
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    max_grad_norm: float = field(default=1.0, metadata=_about("clip the global L2 norm; 0 is off"))
    num_train_epochs: float = 3.0
    max_steps: int = field(default=-1, metadata=_about("above 0: optimizer steps, instead of epochs"))
    lr_scheduler_type: ScheduleName = "linear"
    lr_scheduler_kwargs: dict[str, Any] | str | None = None
    warmup_ratio: float = 0.0
    warmup_steps: float = field(default=0, metadata=_about("steps, or a share of all steps when below 1"))
    logging_strategy: Interval = "steps"
    logging_first_step: bool = False
    logging_steps: float = 500
    save_strategy: Interval = "steps"
    save_steps: float = 500
    save_total_limit: int | None = None
    no_cuda: bool = False
    use_cpu: bool = False
    seed: int = 42
    data_seed: int | None = None
    bf16: bool = field(default=False, metadata=_about("bfloat16 compute over fp32 weights"))
    fp16: bool = False
    tf32: bool | None = None
    full_determinism: bool = field(
        default=False, metadata=_about("GPU kernels whose bits do not depend on timing; the CPU's never do")
    )
    local_rank: int = -1
    ddp_backend: str | None = None
    ddp_timeout: int = field(default=1800, metadata=_about("seconds that a collective may take"))
    ddp_find_unused_parameters: bool | None = None
    dataloader_drop_last: bool = False
    eval_steps: float | None = None
    disable_tqdm: bool | None = None
    ignore_data_skip: bool = False
    fsdp: list[str] | str | None = None
    fsdp_config: dict[str, Any] | str | None = None
    fsdp_transformer_layer_cls_to_wrap: str | None = None
    label_smoothing_factor: float = 0.0
    optim: str = "adamw_torch"
    report_to: list[str] | str | None = None
    resume_from_checkpoint: str | None = field(
        default=None, metadata=_about("a checkpoint; True is the newest, which is the default, False none")
    )
    gradient_checkpointing: bool = False
    save_safetensors: bool | None = True
    average_tokens_across_devices: bool | None = True
    eval_on_start: bool = False
    cache_dir: str | None = None
    model_max_length: int = field(
        default=512, metadata=_about("longest example in tokens; longer ones are cut")
    )
    loss_norm: Literal["global_tokens", "micro_batch"] = "global_tokens"
    micro_batch_tokens: int | None = field(
        default=None,
        metadata=_about("tokens of one padding-free micro-batch; unset: what fits and is useful"),
    )
    recompute: Literal["auto", "none", "selective", "gate_up", "block"] = "auto"
    grad_dtype: Literal["float32", "bfloat16"] = field(
        default="float32",
        metadata=_about("dtype of the accumulated gradient; bfloat16 saves 2 bytes a parameter"),
    )
    optim_dtype: Literal["float32", "bfloat16"] = field(
        default="float32",
        metadata=_about(
            "dtype of AdamW's moments; bfloat16, rounded stochastically, saves 4 bytes a parameter"
        ),
    )
    master_dtype: Literal["float32", "split"] = field(
        default="float32",
        metadata=_about(
            "masters of --bf16 True: split keeps the 16 bits that the bfloat16 weights lack, the same "
            "numbers in 2 bytes less a parameter"
        ),
    )
    profile: str | None = field(
        default=None, metadata=_about("file for a timeline of --profile_steps, for https://ui.perfetto.dev")
    )
    profile_steps: str = field(default="3-5", metadata=_about("optimizer steps to record, from 1"))
    save_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    max_shard_size: str = "5GB"
    no_resume: bool = field(default=False, metadata=_about("ignore checkpoints in output_dir"))

    def __post_init__(self) -> None:
        self.output_dir = os.path.expanduser(self.output_dir or "trainer_output")
        self._name_fields_without_effect()
        self._check_choices()
        parse_size(self.max_shard_size)
        parse_steps(self.profile_steps)
        self._settle_resume()
        self._settle_evaluation()
        self._settle_cadences()
        self._settle_warmup()
        self._settle_device()
        self._settle_sharding()
        self.lr_scheduler_kwargs = _json_object("lr_scheduler_kwargs", self.lr_scheduler_kwargs)
        self.local_rank = launch().local_rank

    def _name_fields_without_effect(self) -> None:
        for item in fields(self):
            reason = _NO_EFFECT.get(item.name)
            if reason and item.name not in _QUIET and getattr(self, item.name) != item.default:
                warn_once(f"--{item.name} has no effect: {reason}")

    def _check_choices(self) -> None:
        if self.fp16:
            raise ValueError("fastsft does not support --fp16: there is no loss scaler; use --bf16 True")
        if self.optim not in _ADAMW:
            raise ValueError(f"fastsft does not support --optim {self.optim}; use --optim adamw_torch")
        if self.save_safetensors is False:
            raise ValueError(
                "fastsft does not support --save_safetensors False; leave it unset: safetensors is written"
            )
        if self.ddp_backend not in (None, "gloo", "nccl"):
            raise ValueError(f"fastsft does not support --ddp_backend {self.ddp_backend}; use gloo or nccl")
        trackers = [self.report_to] if isinstance(self.report_to, str) else list(self.report_to or [])
        self.report_to = [name for name in trackers if name != "none"]
        if self.report_to:
            raise ValueError(
                f"fastsft does not support --report_to {' '.join(self.report_to)} yet; use --report_to none"
            )
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ValueError(f"--{name}: expected at least 1, got {getattr(self, name)}")
        if self.master_dtype == "split" and not self.bf16:
            raise ValueError(
                "--master_dtype split needs --bf16 True: float32 computes with the master itself"
            )
        if self.micro_batch_tokens is not None and self.micro_batch_tokens < 1:
            raise ValueError(f"--micro_batch_tokens: expected at least 1, got {self.micro_batch_tokens}")
        if not 0 <= self.label_smoothing_factor < 1:
            raise ValueError(
                f"--label_smoothing_factor: expected 0 or more and below 1, got {self.label_smoothing_factor}"
            )

    def _settle_resume(self) -> None:
        """The words True (the newest checkpoint) and False (none) instead of a directory."""
        word = str(self.resume_from_checkpoint).lower()
        if word == "true":
            self.resume_from_checkpoint = True  # type: ignore[assignment]
        elif word == "false":
            self.resume_from_checkpoint, self.no_resume = None, True

    def _settle_evaluation(self) -> None:
        if self.evaluation_strategy is not None:
            if self.eval_strategy not in ("no", self.evaluation_strategy):
                raise ValueError(
                    f"--evaluation_strategy {self.evaluation_strategy} is the old name of --eval_strategy, "
                    f"which is {self.eval_strategy}; give one of the two"
                )
            self.eval_strategy = self.evaluation_strategy
        self.do_eval = self.do_eval or self.eval_strategy != "no"
        if self.eval_strategy == "steps" and not self.eval_steps:
            if self.logging_steps <= 0:
                raise ValueError("--eval_strategy steps needs --eval_steps or --logging_steps above 0")
            self.eval_steps = self.logging_steps

    def _settle_cadences(self) -> None:
        if self.logging_strategy == "steps" and self.logging_steps == 0:
            raise ValueError(
                "--logging_strategy steps needs --logging_steps above 0; --logging_strategy no logs nothing"
            )
        for kind in ("logging", "eval", "save"):
            steps = getattr(self, f"{kind}_steps")
            if getattr(self, f"{kind}_strategy") != "steps":
                continue
            if steps <= 0:
                raise ValueError(f"--{kind}_steps: expected a number above 0, got {steps}")
            if steps > 1:
                if steps != int(steps):
                    raise ValueError(f"--{kind}_steps must be an integer if bigger than 1: {steps}")
                setattr(self, f"{kind}_steps", int(steps))

    def _settle_warmup(self) -> None:
        if not 0 <= self.warmup_ratio <= 1:
            raise ValueError(f"--warmup_ratio: expected a share from 0 to 1, got {self.warmup_ratio}")
        if self.warmup_steps < 0 or (self.warmup_steps >= 1 and self.warmup_steps != int(self.warmup_steps)):
            raise ValueError(
                f"--warmup_steps: expected a number of steps or a share below 1, got {self.warmup_steps}"
            )
        if self.warmup_steps >= 1 or self.warmup_steps == 0:
            self.warmup_steps = int(self.warmup_steps)
        if self.warmup_steps and self.warmup_ratio:
            warn_once("--warmup_steps and --warmup_ratio are both given; --warmup_steps counts")

    def _settle_device(self) -> None:
        self.use_cpu = self.use_cpu or self.no_cuda
        self._device = choose_device(self.use_cpu)
        if self._device == "cpu" and self.tf32:
            warn_once("--tf32 True has no effect on the CPU: products of fp32 matrices stay fp32")
        if self._device == "cpu" and self.ddp_backend == "nccl":
            warn_once("--ddp_backend nccl has no effect on the CPU: ranks communicate through gloo")
        if self.disable_tqdm is None:
            self.disable_tqdm = False

    def _settle_sharding(self) -> None:
        self.fsdp = fsdp_tokens(self.fsdp)
        strategy_of(self.fsdp)
        self.fsdp_config = fsdp_settings(self.fsdp_config)
        if self.gradient_checkpointing and self.fsdp_config.get("activation_checkpointing"):
            raise ValueError(
                "activation_checkpointing in fsdp_config and --gradient_checkpointing do the same; use one"
            )

    @property
    def sharding_strategy(self) -> str:
        """`full_shard`, `shard_grad_op`, `no_shard`, `hybrid_shard` or `hybrid_shard_zero2`."""
        return strategy_of(fsdp_tokens(self.fsdp))

    @property
    def recompute_mode(self) -> str:
        """What the backward pass computes again instead of keeping; the memory plan settles `auto`.

        --gradient_checkpointing asks for what memory needs, which `auto` does with or without it.
        """
        return self.recompute

    @property
    def token_budget(self) -> int:
        """Tokens of one padding-free micro-batch, where no memory plan chooses: without training data."""
        return self.micro_batch_tokens or self.per_device_train_batch_size * self.model_max_length

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Warm-up steps of a run; a share rounds up. Source: trainer_semantics.md, section 12."""
        if self.warmup_steps >= 1:
            return int(self.warmup_steps)
        return math.ceil(num_training_steps * (self.warmup_steps or self.warmup_ratio))


def _number(value: Any) -> Any:
    """Words inside a JSON string: true, false, digits and simple decimals become values."""
    if isinstance(value, dict):
        return {key: _number(item) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value.isdigit():
        return int(value)
    return float(value) if value.replace(".", "", 1).isdigit() else value


def _json_object(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = _number(json.loads(value))
        except json.JSONDecodeError as error:
            raise ValueError(f"--{name}: expected a JSON object, got {value!r}: {error}") from None
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"--{name}: expected a JSON object, got {value!r}")
    return dict(value or {})
