"""Checks that the installed transformers opens the same model: positions, vocabulary and tied weights."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fastsft import _C
from fastsft.doctor.check import WARNING, ExaminedDirectory, NotCheckedError, ProblemError
from fastsft.doctor.verification.files import named
from fastsft.model.config_words import missing_words
from fastsft.model.generic.empty_model import empty_model, empty_of, first_line
from fastsft.runtime.versions import transformers_version

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from fastsft.model.causal_lm import CausalLM

_CLOSE = 1e-5  # relative tolerance of frequencies; wrong RoPE bases or factors change them by far more
_WAY_OUT = "fastsft convert DIR NEW writes config.json and tokenizer in words of both releases"


def check_library(subject: ExaminedDirectory) -> str:
    """Check that transformers opens the configuration and the tokenizer as fastsft does."""
    model, here = subject.need("model", "a config.json of a known family"), transformers_version()
    if here is None:
        raise NotCheckedError("needs transformers")
    if subject.trusts_code or "auto_map" in model.config:
        raise NotCheckedError("the model has code of its own, which transformers would run")
    opened = _opened(subject, here)
    faults = [*_positions(opened, model), *_vocabulary(opened, model), *ties_that_differ(opened, model)]
    faults += _tokenizer(subject)
    if faults:
        raise ProblemError(f"transformers {here} opens another model: {named(faults)}", _WAY_OUT)
    if lacking := missing_words(model.config):
        raise ProblemError(
            f"transformers {here} opens it as it was trained; for other releases config.json lacks "
            f"{', '.join(lacking)}",
            _WAY_OUT,
            WARNING,
        )
    return f"transformers {here} opens it with the same positions, vocabulary and tied weights"


def _opened(subject: ExaminedDirectory, here: str) -> PreTrainedModel:
    """Return the model that transformers builds from config.json, without weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(subject.directory, local_files_only=True)
        return empty_of(
            lambda: AutoModelForCausalLM.from_config(config, dtype=torch.float32), f"transformers {here}"
        )
    except Exception as error:  # libraries may raise any exception
        raise ProblemError(f"transformers {here} does not open it: {first_line(error)}", _WAY_OUT) from None


def _rotations(module: Any) -> dict[str, torch.Tensor]:
    """Return the module's rotary frequencies by buffer name, each multiplied by its attention scaling."""
    frequencies = {}
    for name, buffer in module.named_buffers():
        owner = module.get_submodule(name.rpartition(".")[0])
        if name.endswith("inv_freq") and "original" not in name:
            frequencies[name] = buffer.float() * float(_scale(owner, name))
    return frequencies


def _scale(owner: Any, name: str) -> float:
    kind = name.rpartition(".")[2].removesuffix("inv_freq")
    scale = getattr(owner, f"{kind}attention_scaling", 1.0)
    return scale if isinstance(scale, int | float) else 1.0


def _positions(opened: PreTrainedModel, model: CausalLM) -> list[str]:
    """Return a line for each tensor of rotary frequencies that differs between transformers and fastsft."""
    import torch

    reference = _rotations(opened)
    if model.engine_kind == "native":
        native = _native_rotations(model)
        missing = [own for own in native if not any(_same(own, other) for other in reference.values())]
        return (
            ["rotary frequencies (rope) differ from those that were trained"] if reference and missing else []
        )
    own = _rotations(empty_model(model.config, torch.float32))
    return [
        f"{name}: rotary frequencies (rope) differ from those that were trained"
        for name, value in own.items()
        if name not in reference or not _same(value, reference[name])
    ]


def _native_rotations(model: CausalLM) -> list[torch.Tensor]:
    import torch

    frequencies, scale, _ = _C.rotary_frequencies(json.dumps(model.engine_config()))
    return [torch.tensor(frequencies) * scale]


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    import torch

    return first.shape == second.shape and torch.allclose(first, second, rtol=_CLOSE, atol=0.0)


def _vocabulary(opened: PreTrainedModel, model: CausalLM) -> list[str]:
    rows = opened.get_input_embeddings().weight.shape[0]
    expected = next((shape[0] for name, shape in model.parameter_shapes() if "embed" in name), rows)
    return [] if rows == expected else [f"{rows:,} rows of the embedding, expected {expected:,}"]


def ties_that_differ(opened: PreTrainedModel, model: CausalLM) -> list[str]:
    """Return a line if transformers' model ties head and embedding and fastsft's does not, or vice versa."""
    head = opened.get_output_embeddings()
    if head is None:
        return []
    ties = head.weight is opened.get_input_embeddings().weight
    if ties == bool(model.tied_names()):
        return []
    return [f"head and embedding are {'tied' if ties else 'two'}, expected {'two' if ties else 'tied'}"]


def _tokenizer(subject: ExaminedDirectory) -> list[str]:
    """Return a line if AutoTokenizer fails, or for each special token whose id differs from fastsft's."""
    if subject.tokenizer is None:
        return []
    from transformers import AutoTokenizer

    try:
        reference = AutoTokenizer.from_pretrained(subject.directory, local_files_only=True)
    except Exception as error:  # libraries may raise any exception
        return [f"AutoTokenizer: {first_line(error)}"]
    own = subject.tokenizer
    return [
        f"{name}: {getattr(reference, name)} in transformers, {getattr(own, name)} in fastsft"
        for name in ("bos_token_id", "eos_token_id", "pad_token_id")
        if getattr(reference, name) != getattr(own, name)
    ]
