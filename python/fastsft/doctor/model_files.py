"""Checks the model directory of a run: configuration, weight file headers, tokenizer and chat template."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastsft.arguments import LoraArguments
from fastsft.doctor.check import ExaminedRun, NotCheckedError, ProblemError
from fastsft.lora.attach import with_adapters
from fastsft.lora.merged_save import check_merged_path
from fastsft.model.causal_lm import CausalLM
from fastsft.model.config_words import missing_words
from fastsft.model.engine_choice import open_model
from fastsft.model.family import refuse_remote_code
from fastsft.model.rope_words import PARAMETERS
from fastsft.model.stored_weights import StoredWeights
from fastsft.model.weights import has_safetensors, pickled_files
from fastsft.runtime.hub_models import local_directory, of_default
from fastsft.runtime.messages import warn_once
from fastsft.runtime.terminal import one_line
from fastsft.runtime.versions import library_major, transformers_version

_MOST_NAMED = 5


def check_model(run: ExaminedRun) -> str:
    """Check that config.json describes a model that fastsft can train."""
    args = run.need("args", "the configuration")
    model_args = run.need("model_args", "the configuration")
    name, trusts = model_args.model_name_or_path or "", bool(model_args.trust_remote_code)
    model = open_model(
        str(directory_here(name, args.cache_dir)), engine=args.engine, trust_remote_code=trusts
    )
    if trusts:
        refuse_remote_code(model.source_directory, model.config, runs_model=model.runs_code)
    run.shapes = model.parameter_shapes()
    run.model = model
    if run.lora_args is not None:
        _add_adapters(run, model, name, run.lora_args)
    _extend_context(model, args.model_max_length)
    count = sum(math.prod(shape) for _, shape in run.shapes)
    engine, written = getattr(model, "engine_words", ""), written_by(model.config)
    if problem := words_read_past(model.config):
        warn_once(problem)
    return "\n".join(
        [
            f"{model.source_directory}: {model.config.get('model_type')}, {count:,} parameters",
            *([f"engine {engine}"] if engine else []),
            *([written] if written else []),
        ]
    )


def _add_adapters(run: ExaminedRun, model: CausalLM, name: str, lora: LoraArguments) -> None:
    """Add adapters to the model. ProblemError if they do not fit, or if the merged model cannot be saved."""
    try:
        run.model = with_adapters(model, name, lora)
        check_merged_path(run.output_dir, lora, run.model)
    except ValueError as error:
        raise ProblemError(str(error), "change the flags of LoRA") from None


def _extend_context(model: CausalLM, longest: int) -> None:
    """Warn if rows of `longest` tokens need an extended context. ProblemError if they are too long."""
    try:
        stretched = model.extend_context(longest)
    except ValueError as error:
        raise ProblemError(str(error), "lower --model_max_length") from None
    if stretched:
        warn_once(stretched)


def directory_here(name: str, cache_dir: str | None) -> Path:
    """Return a model's directory. ProblemError for a hub model that was not downloaded before."""
    if (path := local_directory(name)) is not None:
        return path
    import huggingface_hub
    from huggingface_hub import errors

    try:
        return Path(huggingface_hub.snapshot_download(name, cache_dir=cache_dir, local_files_only=True))
    except errors.HFValidationError as error:
        raise ValueError(f"--model_name_or_path: {name} is no directory and no hub name: {error}") from None
    except (errors.LocalEntryNotFoundError, errors.HfHubHTTPError):
        raise ProblemError(
            f"no directory {Path(name).absolute()}, and no model {name} of the hub on this machine; "
            f"the doctor fetches nothing{of_default(name)}",
            f"correct the path; of a hub model: hf download {name}",
        ) from None


def check_weights(run: ExaminedRun) -> str:
    """Check the headers and lengths of the weight files, and that their tensors match config.json."""
    folder = run.need("model", "a readable model").source_directory
    if not has_safetensors(folder):
        _refuse_pickled(run, folder)
    stored = StoredWeights(folder)
    raise_weight_problems(stored, run.opened_model)
    run.weights_dtype = run.opened_model.weights_dtype()
    return f"{weights_text(stored)}; headers and lengths checked, values not read"


def raise_weight_problems(stored: StoredWeights, model: CausalLM) -> None:
    """Raise ProblemError unless weight files are readable and have the tensors that config.json implies."""
    problems = stored.problems or model.stored_form(stored).problems()
    if problems:
        raise ProblemError(
            _listed(problems),
            f"copy or download the weights of {stored.directory} again, whole, with their config.json",
        )


def weights_text(stored: StoredWeights) -> str:
    """Summarize the weight files, such as `2 files, 290 tensors, BF16`."""
    dtypes = ", ".join(sorted({tensor.dtype for tensor in stored.tensors.values()}))
    count = f"{len(stored.files)} file{'' if len(stored.files) == 1 else 's'}"
    return f"{count}, {len(stored.tensors)} tensors, {dtypes}"


def _refuse_pickled(run: ExaminedRun, folder: Path) -> None:
    files = list(pickled_files(folder))
    missing = [str(path) for path in files if not path.is_file()]
    if missing:
        raise ProblemError(f"missing: {', '.join(missing)}", "copy or download the weights again")
    run.weights_dtype = run.opened_model.weights_dtype()
    raise NotCheckedError(
        f"{folder}: {len(files)} pickled weight files are there; they cannot be looked into without loading "
        "them, safetensors can"
    )


def _listed(problems: list[str]) -> str:
    more = len(problems) - _MOST_NAMED
    return "\n".join(problems[:_MOST_NAMED]) + (f"\nand {more} more" if more > 0 else "")


def check_tokenizer_files(run: ExaminedRun) -> str:
    """Check that the tokenizer loads, and that the embedding table has a row for each token."""
    from fastsft.data.conversation_labels import check_tokenizer
    from fastsft.tokenizer.tokenizer import Tokenizer

    model, args = run.need("model", "a readable model"), run.resolved_args
    model_args = run.need("model_args", "the configuration")
    tokenizer = Tokenizer.from_pretrained(
        str(model.source_directory),
        model_max_length=args.model_max_length,
        padding_side=model_args.padding_side,
    )
    check_tokenizer(tokenizer, any_pad=True)
    run.tokenizer = tokenizer
    rows = model.vocab_size()
    if tokenizer.vocab_size > rows:
        raise ProblemError(
            f"{tokenizer.vocab_size:,} tokens, but the model has rows for {rows:,}",
            "a run stops at the first token without one; take the tokenizer of this model",
            "warning",
        )
    return f"{tokenizer.vocab_size:,} tokens, rows of {args.model_max_length:,}"


def check_chat_template(run: ExaminedRun) -> str:
    """Check, by labelling a sample conversation, that only replies and their stop tokens are targets."""
    from fastsft.data.chat.labelling import LabelSettings, describe, describe_labels, make_labeller
    from fastsft.data.chat.mask_policy import resolve_policy, set_pad_token
    from fastsft.data.conversation_labels import check_tokenizer, detect_tools
    from fastsft.inspection.data_report import note_stop_token

    tokenizer = run.need("tokenizer", "a tokenizer")
    settings = resolve_policy(LabelSettings.from_arguments(run.resolved_data_args), tokenizer)
    if run.resolved_data_args.data_path:
        settings = detect_tools(settings, tokenizer, run.resolved_data_args.data_path, fetch=False)
    set_pad_token(settings, tokenizer)
    width, pad_id = check_tokenizer(tokenizer, any_pad=settings.mask_policy == "spans")
    run.labeller = make_labeller(
        tokenizer.native, width, pad_id, settings, tokenizer=tokenizer, self_test=True
    )
    made = describe(run.labeller, settings.why)
    note_stop_token(run.opened_model, tokenizer, made)
    return describe_labels(made)


def written_by(config: Mapping[str, Any]) -> str:
    """Return a text about the transformers release that wrote the configuration; "" if unknown.

    For example: `written by transformers 5.24.0, 4.57.6 is installed`.
    """
    named, here = config.get("transformers_version"), transformers_version()
    if not isinstance(named, str) or not named:
        return ""
    text = f"written by transformers {one_line(named)[:20]}"
    return text if here in (None, named) else f"{text}, {here} is installed"


def words_read_past(config: Mapping[str, Any]) -> str:
    """Return a warning if the installed transformers would read `config` as another model, else ""."""
    here = transformers_version()
    lacking = [name for name in missing_words(config) if name != PARAMETERS]
    if here is None or not lacking or library_major() > 4:
        return ""
    names = ", ".join(lacking[:4])
    return (
        f"config.json lacks words that transformers {here} reads ({names}): transformers opens these files "
        "as another model; fastsft trains it as the file says, and saves it in words of both releases"
    )
