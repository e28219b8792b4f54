"""The model families that fastsft trains: their defaults, and config.json checks before training."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fastsft.runtime.messages import warn_once
from fastsft.runtime.regular_files import file_inside, read_json_object
from fastsft.runtime.terminal import one_line

MODEL, CONFIG = "AutoModelForCausalLM", "AutoConfig"
_TOKENIZER = "AutoTokenizer"
DEFAULT_ATTENTION = "sdpa"  # transformers' default for attn_implementation
CAP = "attn_logit_softcapping"
_WITHOUT_CAP = ("sdpa",)
_DEFAULT_CAP = 50.0
_DROPOUT = re.compile(r"(^|_)(dropout|pdrop|dropout_rate|dropout_prob|drop)$")

# Settings for encoders with inputs other than text.
_TOWERS = (
    "vision_config",
    "audio_config",
    "audio_encoder_config",
    "speech_config",
    "vision_tower_config",
    "mm_vision_tower",
    "visual",
)
# Vision-text families whose text decoder can be trained. On texts, the causal language model that
# transformers makes from `text_config` computes the same as the whole model
# (tests/model/test_vision_text.py).
VISION_TEXT = ("gemma3", "gemma4", "llama4", "mistral3", "qwen3_5", "qwen3_5_moe")
# Families whose configuration class ties embeddings and sets a padding row by default.
GEMMA = ("gemma2", "gemma3_text")


def ties_embeddings(config: Mapping[str, Any]) -> bool:
    """Return True if embedding and head are tied, by config.json or by a native family's default."""
    return bool(config.get("tie_word_embeddings", config.get("model_type") in GEMMA))


def padding_row(config: Mapping[str, Any]) -> Any:
    """Return `pad_token_id` from config.json, or a native family's default."""
    return config.get("pad_token_id", 0 if config.get("model_type") in GEMMA else None)


def is_native(config: Mapping[str, Any]) -> bool:
    """Return True if the native engine supports this model_type."""
    from fastsft import _C

    return config.get("model_type") in _C.model_families()


def is_known_to_library(config: Mapping[str, Any]) -> bool:
    """Return True if the installed transformers has a causal language model with this model_type.

    ValueError if transformers is not installed.
    """
    _check_installed(config)
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return config.get("model_type") in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def check_vision_text(config: Mapping[str, Any]) -> None:
    """Raise ValueError if the installed transformers lacks this vision-text model."""
    _check_installed(config)
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    if config.get("model_type") not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        raise ValueError(
            f"model family {_named(config)}: transformers {_library_version()} does not have it; install a "
            "newer transformers"
        )


_OF_RUNS = {"model_name_or_path", "data_path", "output_dir", "learning_rate"}  # flags of training


def _check_installed(config: Mapping[str, Any]) -> None:
    try:
        import transformers.models.auto.modeling_auto  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"model family {_named(config)} is trained by transformers' own forward and backward, and "
            f"transformers cannot be imported ({error}): pip install transformers"
        ) from None


def check_family(config: Mapping[str, Any], directory: Path) -> None:
    """Raise ValueError if the native engine does not support the model_type."""
    from fastsft import _C

    if is_native(config):
        return
    path, families = directory / "config.json", ", ".join(sorted(_C.model_families()))
    if config.get("model_type") is None:
        is_of_run = not _OF_RUNS.isdisjoint(config)
        way = (
            "A file of flags is given as --config FILE"
            if is_of_run
            else "Name a model directory of transformers"
        )
        raise ValueError(f"{path}: no model_type; native: {families}. {way}")
    if has_model_code(config):
        raise ValueError(
            f"{path}: unknown model family {_named(config)}: its class is code of the directory (auto_map), "
            "which is not run; read it, and give --trust_remote_code True if you trust it"
        )
    if is_known_to_library(config):
        raise ValueError(
            f"{path}: unknown model family {_named(config)} of the native engine, which has {families}; "
            "--engine auto trains it by transformers' own forward and backward"
        )
    raise ValueError(
        f"{path}: unknown model family {_named(config)}: neither native ({families}) nor a causal language "
        f"model of transformers {_library_version()}. Name another model, or try a newer transformers"
    )


def is_vision_text(config: Mapping[str, Any]) -> bool:
    """Return True for a vision-text model of a family whose text decoder can be trained."""
    return config.get("model_type") in VISION_TEXT and isinstance(config.get("text_config"), Mapping)


def check_decoder(config: Mapping[str, Any], where: str) -> None:
    """Raise ValueError if a model has parts besides a text decoder, because texts would not train them."""
    towers = [name for name in _TOWERS if config.get(name)]
    if towers:
        raise ValueError(
            f"{where}: model family {_named(config)} has a part that is not for text ({towers[0]}), and "
            f"fastsft trains the text decoders of directories of {', '.join(VISION_TEXT)}; name one of these,"
            " or train with transformers' Trainer"
        )
    if config.get("is_encoder_decoder"):
        raise ValueError(
            f"{where}: model family {_named(config)} is an encoder-decoder, and fastsft trains decoders "
            "alone; name a causal language model"
        )


def check_floats(config: Mapping[str, Any], directory: Path) -> None:
    """Raise ValueError if the configuration says that the weights are quantised."""
    settings = config.get("quantization_config")
    if not settings:
        return
    method = settings.get("quant_method") if isinstance(settings, Mapping) else None
    raise ValueError(
        f"{directory / 'config.json'}: quantization_config ({one_line(str(method or settings))[:60]}): its "
        "weights are quantised, and fastsft trains float weights; name the model that it was made of (LoRA "
        "with --q_lora True has it in 4 bits)"
    )


def check_dropouts(config: Mapping[str, Any], directory: Path) -> None:
    """Raise ValueError for dropouts outside 0 to 1. transformers rejects them only in the first step."""
    for name, value in config.items():
        is_share = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
        if value is not None and not is_share and _DROPOUT.search(name):
            raise ValueError(
                f"{directory / 'config.json'}: {one_line(name)}: expected a number from 0 to 1, got "
                f"{one_line(str(value))[:60]}; correct it (0.0 drops nothing)"
            )


def _named(config: Mapping[str, Any]) -> str:
    return f'"{one_line(str(config.get("model_type")))[:60]}"'


def _library_version() -> str:
    return importlib.metadata.version("transformers")


def has_model_code(config: Mapping[str, Any]) -> bool:
    """Return True if auto_map in config.json names a model class that is code in the directory."""
    return MODEL in _classes(config)


def check_model_code(config: Mapping[str, Any], directory: Path, engine: str) -> None:
    """Raise ValueError for --engine native, and if a code file that auto_map names is missing."""
    path, classes = directory / "config.json", _classes(config)
    if engine == "native":
        raise ValueError(
            f"--trust_remote_code True: {path}: auto_map has {MODEL} {classes[MODEL]!r}, code that the "
            "native engine does not run: leave out --engine native, or leave the flag out, to train with the "
            "family's own class"
        )
    for name in (CONFIG, MODEL):
        file = code_file(classes.get(name, ""))
        if name in classes and (file is None or file_inside(directory, file) is None):
            raise ValueError(
                f"--trust_remote_code True: {path}: auto_map has {name} {classes[name]!r}; expected a module "
                "of this directory and its class, as modeling_x.XForCausalLM: copy the files of code into it"
            )


def code_file(reference: object) -> str | None:
    """Return `modeling_x.py` for "modeling_x.XForCausalLM".

    None if the reference names no module in the directory.
    """
    parts = reference.split(".") if isinstance(reference, str) else []
    return f"{parts[0]}.py" if len(parts) == 2 and all(map(str.isidentifier, parts)) else None


def refuse_remote_code(directory: Path, config: Mapping[str, Any], *, runs_model: bool) -> None:
    """Raise ValueError for classes in `auto_map` that transformers would run, but fastsft does not.

    Called if --trust_remote_code is True. config: the content of config.json. runs_model: True if fastsft
    runs the directory's model class.
    """
    if not runs_model:
        _refuse(directory / "config.json", _classes(config), (CONFIG, MODEL))
    path = directory / "tokenizer_config.json"
    if path.is_file():
        _refuse(path, _classes(read_json_object(path)), (_TOKENIZER,))


def _refuse(path: Path, classes: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        if name in classes:
            raise ValueError(
                f"--trust_remote_code True: {path}: auto_map has {name} {classes[name]!r}, code that "
                "transformers would run, and fastsft does not: leave the flag out, or take the entry out of "
                "the file, to use the library's own class; else train with transformers' Trainer"
            )


def _classes(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the classes that auto_map names. In old tokenizer configurations, auto_map is a plain list."""
    classes = content.get("auto_map")
    if isinstance(classes, list | tuple):
        return {_TOKENIZER: classes}
    return {name: value for name, value in classes.items() if value} if isinstance(classes, Mapping) else {}


def as_computed(config: Mapping[str, Any], attention: str) -> dict[str, Any]:
    """Return `config` as transformers computes it with the attention implementation `attention`.

    sdpa in transformers ignores Gemma 2's cap on attention scores; eager, flash and flex attention apply the
    cap.
    """
    return {**config, CAP: None} if _ignores_cap(config, attention) else dict(config)


def tell_ignored_cap(config: Mapping[str, Any], attention: str, *, trains: bool = True) -> None:
    """Print a notice if `attention` ignores the cap on attention scores.

    trains: True to explain how to train with the cap, too.
    """
    if not _ignores_cap(config, attention):
        return
    version = _library_with_cap()
    installed = f"; transformers {version}, which is installed, computes with it (eager attention)"
    generic = "--engine generic trains with it, as does " if version else ""
    given = 'a model that was loaded with attn_implementation="eager" and given to the Trainer'
    way = f"; {generic}{given}{'' if version else ' is trained with it'}" if trains else ""
    warn_once(
        f"{CAP} is left out, as by the {attention} attention of transformers 4, with which FastChat trains"
        f"{installed if version else ''}{way}"
    )


@cache
def _library_with_cap() -> str | None:
    """Return the installed transformers' version if its default attention applies Gemma 2's cap; else None.

    In such a version, Gemma 2's classes do not support sdpa and use eager attention. The source file is read
    rather than imported.
    """
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return None
    source = Path(spec.origin).parent / "models" / "gemma2" / "modeling_gemma2.py"
    if not source.is_file() or "_supports_sdpa = False" not in source.read_text(encoding="utf-8"):
        return None
    return importlib.metadata.version("transformers")


def _ignores_cap(config: Mapping[str, Any], attention: str) -> bool:
    caps = config.get("model_type") == "gemma2" and config.get(CAP, _DEFAULT_CAP) is not None
    return caps and attention in _WITHOUT_CAP
