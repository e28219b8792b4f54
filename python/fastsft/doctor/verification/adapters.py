"""Configuration and tensors of a LoRA adapter agree with each other and with the base model."""

from __future__ import annotations

import math

from fastsft.doctor.model_files import directory_here
from fastsft.doctor.result import NotCheckedError, ProblemError
from fastsft.doctor.verification import contents
from fastsft.doctor.verification.files import named
from fastsft.doctor.verification.subject import Subject
from fastsft.lora.adapter_files import AdapterDirectory
from fastsft.lora.attach import find_targets
from fastsft.model.engine_choice import open_model
from fastsft.model.stored_weights import extremes
from fastsft.planning.devices import size_text


def check_config(subject: Subject) -> str:
    """adapter_config.json is one that fastsft computes, and the base model that it names is here."""
    subject.adapter = adapter = AdapterDirectory(subject.directory)
    settings = adapter.settings
    words = f"LoRA, r {settings.r}, alpha {settings.lora_alpha:g}"
    if settings.base_model is None:
        raise ProblemError(
            f"{words}; base_model_name_or_path names no model, which peft and fastsft chat look for",
            "write the base model's directory or hub name there",
        )
    subject.model = open_model(str(directory_here(settings.base_model, None)))
    return f"{words}, of {settings.base_model}"


def check_tensors(subject: Subject) -> str:
    """Every tensor that the configuration names is there with its shape, and no other."""
    adapter = subject.need("adapter", "an adapter_config.json that can be read")
    model = subject.need("model", "the base model")
    find_targets(model, adapter)
    count = sum(math.prod(shape) for shape in adapter.shapes.values())
    size = size_text(adapter.file.stat().st_size)
    return f"{len(adapter.shapes)} tensors, {count:,} parameters, {size}, as the base model has places for"


def check_values(subject: Subject) -> str:
    """Every value is a finite number."""
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


def check_tokenizer(subject: Subject) -> str:
    """As of a model; an adapter needs none of its own."""
    if not (subject.directory / "tokenizer_config.json").is_file():
        raise NotCheckedError("the adapter has no tokenizer of its own: the base model's is taken")
    return contents.check_tokenizer(subject)
