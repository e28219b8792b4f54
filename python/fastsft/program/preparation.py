"""The first half of `train()`: a run's preparation, up to the model and the labelled rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastsft.arguments import DataArguments, LoraArguments, ModelArguments, TrainingArguments
from fastsft.arguments.from_transformers import as_arguments, data_settings
from fastsft.arguments.parsing.call_arguments import read_arguments
from fastsft.arguments.parsing.parser import DataclassParser
from fastsft.checkpoint.start import restore_template_date, resume_after_torchrun_restart
from fastsft.data.chat.labelling import LabelSettings
from fastsft.data.chat.mask_policy import resolve_label_arguments, resolve_script_policy, set_pad_token
from fastsft.data.chat.template_saving import set_saved_template
from fastsft.data.eval_split import check_split, with_split_seed
from fastsft.data.label_report import check_embedding
from fastsft.inspection.data_report import show_data
from fastsft.lora.attach import open_model
from fastsft.model.output_directory import prepare_output_directory
from fastsft.program.checked_names import check_directory, check_names
from fastsft.ranks.process_group import join
from fastsft.runtime.devices import use_device
from fastsft.runtime.timeouts import deadline
from fastsft.script_names.module_names import is_rebound, rebound_data_names
from fastsft.tokenizer.transformers_tokenizer import run_tokenizer
from fastsft.trackers.tracker import check_trackers
from fastsft.trainer.agreed_inputs import agree_on_model, meet_and_agree
from fastsft.trainer.compat.overrides import check_best_of_run
from fastsft.trainer.preflight import check_context_ranks, disable_evaluation, warn_of_no_evaluation
from fastsft.trainer.samples import check_sample_prompts
from fastsft.trainer.schedule import check_schedule

if TYPE_CHECKING:
    from fastsft.model.causal_lm import CausalLM


@dataclass
class RunConfig:
    """All arguments of a run.

    settings: the data arguments, as fastsft's DataArguments. files: same as `settings`, or None if a script
    reads the data itself.
    """

    model_args: ModelArguments
    data_args: DataArguments
    args: TrainingArguments
    lora_args: LoraArguments
    settings: DataArguments
    files: DataArguments | None

    @property
    def trusts_code(self) -> bool:
        """True if --trust_remote_code is given."""
        return bool(getattr(self.model_args, "trust_remote_code", False))

    @property
    def output_dir(self) -> str:
        """Output directory; the working directory if the arguments have none."""
        return self.args.output_dir or "."


@dataclass
class LoadedData:
    """The tokenizer and the data sets of a run. sets: data arguments for Trainer, by parameter name."""

    tokenizer: Any
    sets: dict[str, Any]

    @property
    def train_dataset(self) -> Any:
        """Labelled rows to train on."""
        return self.sets["train_dataset"]


def read_config(
    trainer_class: type,
    classes: tuple[type, type, type, type],
    arguments: Sequence[str] | Mapping[str, Any] | None,
    flags: Mapping[str, object],
) -> RunConfig:
    """Parse and check all arguments, without side effects. ValueError names the flag.

    trainer_class, classes: the Trainer class, and the classes of model, data, training and LoRA arguments,
    as they are bound in `fastsft.train`. A script may have replaced them.
    """
    check_names(trainer_class)
    parser = DataclassParser(classes)
    model_args, data_args, given, lora_args = read_arguments(parser, arguments, flags)
    args, settings = as_arguments(given), data_settings(data_args)
    files = None if is_rebound("make_supervised_data_module") else settings
    if files is not None:
        files.check_files()
        check_best_of_run(trainer_class, args, files.has_evaluation)
    check_schedule(args)
    check_trackers(args.report_to, args)
    check_sample_prompts(args, data_args)
    return RunConfig(model_args, data_args, args, lora_args, settings, files)


def meet_ranks(config: RunConfig) -> None:
    """Choose the device, meet the other ranks, and check that arguments and data are the same. Collective."""
    args = config.args
    use_device(str(args.device), args.tf32, args.full_determinism)
    with deadline(args, "init"):
        meet_and_agree(args, config.model_args, config.data_args, config.files, config.lora_args)
        join(args.ddp_timeout, str(args.device))


def load_model(config: RunConfig) -> CausalLM:
    """Open the model directory, and prepare `output_dir`. ValueError if the model cannot be trained."""
    args, lora_args = config.args, config.lora_args
    model = open_model(
        config.model_args.model_name_or_path or "", lora_args, args.cache_dir, args.seed, args.engine,
        trust_remote_code=config.trusts_code,
    )  # fmt: skip
    check_directory(model, trusts_code=config.trusts_code)
    check_context_ranks(model, args)
    prepare_output_directory(model.source_directory, config.output_dir)
    return model


def load_data(
    config: RunConfig,
    model: CausalLM,
    make_data_module: Callable[..., dict[str, Any]],
    say: Callable[[str], None],
) -> LoadedData:
    """Make the tokenizer and the labelled rows, and print a summary of them. Collective.

    make_data_module, say: FastChat's functions make_supervised_data_module and rank0_print. A script may have
    replaced them.
    """
    args = config.args
    stretched = model.extend_context(args.model_max_length)
    if stretched:
        say(f"warning: {stretched}")
    model.config.use_cache = False
    padding_side = getattr(config.model_args, "padding_side", "right")
    tokenizer = run_tokenizer(str(model.source_directory), args.model_max_length, padding_side)
    resume_after_torchrun_restart(args)
    data_args = config.data_args = restore_template_date(config.data_args, args)
    has_own_files = config.files is not None and not rebound_data_names()
    label_args = resolve_label_arguments(data_args, tokenizer) if has_own_files else data_args
    labels = resolve_script_policy(LabelSettings.from_arguments(label_args))
    set_pad_token(labels, tokenizer)
    agree_on_model(model, tokenizer)
    if has_own_files:
        check_embedding(tokenizer, labels, model.vocab_size())
    label_args = with_split_seed(label_args, args)
    with deadline(args, "data"):
        sets = make_data_module(tokenizer=tokenizer, data_args=label_args)
    check_split(config.settings.eval_split, sets["train_dataset"])
    labelling = getattr(sets["train_dataset"], "labelling", None) or {}
    set_saved_template(tokenizer, labels, labelling, config.settings.save_chat_template)
    show_data(model, tokenizer, config.settings, config.output_dir, sets)
    return LoadedData(tokenizer, sets)


def check_evaluation(args: TrainingArguments, data: LoadedData) -> None:
    """Turn evaluation off if there is no evaluation data. Warn if there is data but no evaluation."""
    if data.sets.get("eval_dataset") is None:
        disable_evaluation(args)
    else:
        warn_of_no_evaluation(args)
