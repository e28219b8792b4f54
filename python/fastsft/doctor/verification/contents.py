"""Checks that configuration, tensors, tokenizer and chat template of a model or an adapter agree."""

from __future__ import annotations

import math
import os
from typing import Any

from fastsft import _C
from fastsft.data.chat.labelling import LabelSettings, describe, make_labeller
from fastsft.data.conversation_labels import check_tokenizer as check_padding
from fastsft.doctor.check import WARNING, ExaminedDirectory, NotCheckedError, ProblemError
from fastsft.doctor.model_files import directory_here, raise_weight_problems, weights_text
from fastsft.doctor.verification.files import named
from fastsft.inspection.data_report import note_stop_token
from fastsft.lora.adapter_files import AdapterDirectory
from fastsft.lora.attach import find_targets
from fastsft.model.engine_choice import open_model
from fastsft.model.stored_weights import DTYPES, StoredWeights, extremes
from fastsft.planning.devices import size_text
from fastsft.tokenizer.tokenizer import Tokenizer

_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def check_config(subject: ExaminedDirectory) -> str:
    """Check that config.json describes a model that fastsft can open."""
    model = open_model(str(subject.directory), trust_remote_code=subject.trusts_code)
    count = sum(math.prod(shape) for _, shape in model.parameter_shapes())
    subject.model = model
    kind = "" if model.engine_kind == "native" else f" ({model.engine_kind} engine)"
    return f"{model.config.get('model_type')}{kind}, {count:,} parameters"


def check_tensors(subject: ExaminedDirectory) -> str:
    """Check that the weight files have exactly the tensors that config.json implies."""
    subject.weights = StoredWeights(subject.directory)
    model = subject.need("model", "a config.json of a known family")
    raise_weight_problems(subject.weights, model)
    _check_index(subject.weights)
    named_type = str(model.config.get("dtype") or model.config.get("torch_dtype") or "")
    named_type = named_type.removeprefix("torch.")
    dtypes = {DTYPES[entry.dtype] for entry in subject.weights.tensors.values() if entry.dtype in DTYPES}
    if named_type and named_type not in dtypes:
        raise ProblemError(
            f"{weights_text(subject.weights)}; config.json says {named_type}",
            "loaders may convert them; fastsft convert writes the two alike",
            WARNING,
        )
    return weights_text(subject.weights)


def _check_index(weights: StoredWeights) -> None:
    """Raise ProblemError unless the index file names the right weight file for each tensor."""
    folder = weights.directory
    if weights.is_pickled or os.path.lexists(folder / "model.safetensors"):
        return
    index = _C.read_weight_map(str(folder))
    faults = [f"{name}: not in the index" for name in weights.tensors if name not in index]
    for name, file in index.items():
        entry = weights.tensors.get(name)
        if entry is None:
            faults.append(f"{name}: the index says {file}, no file has it")
        elif entry.file.resolve() != (folder / file).resolve():  # resolved, because the hub's cache has links
            faults.append(f"{name}: the index says {file}, it is in {entry.file.name}")
    if faults:
        raise ProblemError(named(faults), "fastsft convert writes files and index alike")


def check_values(subject: ExaminedDirectory) -> str:
    """Check that all values of the weights are finite; a few million are in memory at a time."""
    weights = subject.need("weights", "weights")
    if weights.problems:
        raise NotCheckedError("needs weight files that can be read")
    faults, largest, where = [], 0.0, ""
    for name, entry in weights.tensors.items():
        if entry.dtype not in DTYPES:
            continue
        bad, most = extremes(weights.blocks(name))
        if bad:
            faults.append(f"{name}: {bad:,} of {entry.count:,} values are not finite")
        if most > largest:
            largest, where = most, name
    if faults:
        raise ProblemError(named(faults), "take a checkpoint from before, or copy the weights again")
    return f"all finite; the largest is {largest:.3g}, in {where}" if where else "all are 0"


def check_tied(subject: ExaminedDirectory) -> str:
    """Check that tied weights are stored as one tensor, or as two tensors with equal values."""
    model = subject.need("model", "a config.json of a known family")
    weights = subject.need("weights", "weights")
    if weights.problems:
        raise NotCheckedError("needs weight files that can be read")
    ties, copies = model.tied_names(), model.stored_form(weights).second_copies()
    if not ties:
        return "config.json ties none"
    if not copies:
        return "the head is the embedding, stored once"
    for first, second in copies:
        if not weights.is_same(first, weights, second):
            raise ProblemError(
                f"config.json ties {second} to {first}, and the two are stored with other values",
                "set tie_word_embeddings as the model was trained, or remove the one that is not of it",
            )
    return "head and embedding are stored twice, with the same bits"


def check_tokenizer(subject: ExaminedDirectory) -> str:
    """Check that the tokenizer loads, fits the embedding, and has the special tokens of config.json."""
    subject.tokenizer = tokenizer = Tokenizer.from_pretrained(str(subject.directory))
    model = subject.need("model", "a config.json of a known family")
    config, rows = model.config, model.vocab_size()
    if tokenizer.vocab_size > rows:
        raise ProblemError(
            f"{tokenizer.vocab_size:,} tokens, and {rows:,} rows of the embedding",
            "take the tokenizer of this model, or resize the embedding",
        )
    others = [line for name in _IDS if (line := _other_id(name, config, tokenizer))]
    text = f"{tokenizer.vocab_size:,} tokens, {rows:,} rows of the embedding"
    if others:
        raise ProblemError(
            "\n".join([text, *others]),
            "generation stops and pads by config.json; make the two alike",
            WARNING,
        )
    return text


def _other_id(name: str, config: dict[str, Any], tokenizer: Tokenizer) -> str:
    """Return a line if config.json and the tokenizer have different ids for the token `name`, else "".

    A missing id does not count as a difference.
    """
    configured, own = config.get(name), getattr(tokenizer, name)
    listed = configured if isinstance(configured, list) else [configured]
    if own is None or configured is None or own in listed:
        return ""
    return f"{name}: {configured} in config.json, {own} in the tokenizer"


def check_template(subject: ExaminedDirectory) -> str:
    """Check that the chat template renders a conversation, and ends replies with a stop token."""
    tokenizer = subject.need("tokenizer", "a tokenizer")
    if not tokenizer.chat_template:
        raise NotCheckedError("the tokenizer has no chat template; apply_chat_template needs one")
    settings = LabelSettings(mask_policy="spans")
    tokenizer.model_max_length = min(tokenizer.model_max_length, 1 << 20)
    width, pad_id = check_padding(tokenizer, any_pad=True)
    labeller = make_labeller(tokenizer.native, width, pad_id, settings, tokenizer=tokenizer, self_test=True)
    made = describe(labeller)
    if subject.model is not None:
        note_stop_token(subject.model, tokenizer, made)
    return f"renders a conversation; replies end with {made['stop_token']}"


def check_adapter_config(subject: ExaminedDirectory) -> str:
    """Check that fastsft supports the adapter's configuration, and that its base model is on this machine."""
    try:
        subject.adapter = adapter = AdapterDirectory(subject.directory)
    except ValueError as error:
        raise ProblemError(str(error), "copy the adapter again") from None
    settings = adapter.settings
    text = f"LoRA, r {settings.r}, alpha {settings.lora_alpha:g}"
    if settings.base_model is None:
        raise ProblemError(
            f"{text}; base_model_name_or_path names no model, which peft and fastsft chat look for",
            "write the base model's directory or hub name there",
        )
    subject.model = open_model(str(directory_here(settings.base_model, None)))
    return f"{text}, of {settings.base_model}"


def check_adapter_tensors(subject: ExaminedDirectory) -> str:
    """Check that the adapter has exactly the tensors that its configuration implies for the base model."""
    adapter = subject.need("adapter", "an adapter_config.json that can be read")
    model = subject.need("model", "the base model")
    find_targets(model, adapter)
    count = sum(math.prod(shape) for shape in adapter.shapes.values())
    size = size_text(adapter.file.stat().st_size)
    return f"{len(adapter.shapes)} tensors, {count:,} parameters, {size}, as the base model has places for"


def check_adapter_values(subject: ExaminedDirectory) -> str:
    """Check that all values of the adapter are finite."""
    adapter = subject.need("adapter", "an adapter_config.json that can be read")
    faults, largest = [], 0.0
    for name, shape in adapter.shapes.items():
        bad, most = extremes([adapter.read(name)])
        if bad:
            faults.append(f"{name}: {bad:,} of {math.prod(shape):,} values are not finite")
        largest = max(largest, most)
    if faults:
        raise ProblemError(named(faults), "take a checkpoint from before, or copy the adapter again")
    return f"all finite; the largest is {largest:.3g}"


def check_adapter_tokenizer(subject: ExaminedDirectory) -> str:
    """Check the adapter's tokenizer like a model's. NotCheckedError if the adapter has no tokenizer."""
    if not (subject.directory / "tokenizer_config.json").is_file():
        raise NotCheckedError("the adapter has no tokenizer of its own: the base model's is taken")
    return check_tokenizer(subject)
