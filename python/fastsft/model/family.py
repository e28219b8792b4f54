"""The architectures that fastsft trains, checked before anything else is read."""

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
from fastsft.runtime.terminal_text import one_line

# Of configurations: what else than text a model reads.
_TOWERS = (
    "vision_config",
    "audio_config",
    "audio_encoder_config",
    "speech_config",
    "vision_tower_config",
    "mm_vision_tower",
    "visual",
)
# Vision-text models of which the text decoder is trained: transformers' causal language model of their
# `text_config` computes texts as the whole model does (tests/model/test_vision_text.py).
VISION_TEXT = ("gemma3", "gemma4", "llama4", "mistral3", "qwen3_5", "qwen3_5_moe")
# Families whose configuration class ties the embedding and the head, and has a padding row, where
# config.json says nothing.
_GEMMA = ("gemma2", "gemma3_text")


def ties_embeddings(config: Mapping[str, Any]) -> bool:
    """True where embedding and head are one tensor, by config.json or, for a native family, its default."""
    return bool(config.get("tie_word_embeddings", config.get("model_type") in _GEMMA))


def padding_row(config: Mapping[str, Any]) -> Any:
    """`pad_token_id`; where config.json does not name it, the default of the family."""
    return config.get("pad_token_id", 0 if config.get("model_type") in _GEMMA else None)


def is_native(config: Mapping[str, Any]) -> bool:
    """True for a model_type that the native engine computes."""
    from fastsft import _C

    return config.get("model_type") in _C.model_families()


def is_known_to_library(config: Mapping[str, Any]) -> bool:
    """True for a model_type of which the installed transformers has a causal language model.

    ValueError where transformers is not there.
    """
    _check_installed(config)
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return config.get("model_type") in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def check_library(config: Mapping[str, Any]) -> None:
    """ValueError for a vision-text model that the installed transformers does not have."""
    _check_installed(config)
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    if config.get("model_type") not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        raise ValueError(
            f"model family {_named(config)}: transformers {_library_version()} does not have it; install a "
            "newer transformers"
        )


def _check_installed(config: Mapping[str, Any]) -> None:
    try:
        import transformers.models.auto.modeling_auto  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"model family {_named(config)} is trained by transformers' own forward and backward, and "
            f"transformers cannot be imported ({error}): pip install transformers"
        ) from None


def check_family(config: Mapping[str, Any], directory: Path) -> None:
    """ValueError with the path and the way out for a model_type that the native engine does not know."""
    from fastsft import _C

    if is_native(config):
        return
    path, known = directory / "config.json", ", ".join(sorted(_C.model_families()))
    if config.get("model_type") is None:
        raise ValueError(f"{path}: no model_type; native: {known}. Name a model directory of transformers")
    if has_model_code(config):
        raise ValueError(
            f"{path}: unknown model family {_named(config)}: its class is code of the directory (auto_map), "
            "which is not run; read it, and give --trust_remote_code True if you trust it"
        )
    if is_known_to_library(config):
        raise ValueError(
            f"{path}: unknown model family {_named(config)} of the native engine, which has {known}; "
            "--engine auto trains it by transformers' own forward and backward"
        )
    raise ValueError(
        f"{path}: unknown model family {_named(config)}: neither native ({known}) nor a causal language "
        f"model of transformers {_library_version()}. Name another model, or try a newer transformers"
    )


def is_vision_text(config: Mapping[str, Any]) -> bool:
    """True for a vision-text model of a family whose text decoder is trained."""
    return config.get("model_type") in VISION_TEXT and isinstance(config.get("text_config"), Mapping)


def check_decoder(config: Mapping[str, Any], where: str) -> None:
    """ValueError for a model that is more than a text decoder: its other half would be trained on nothing."""
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
    """ValueError for a model whose configuration says that its weights are quantised."""
    found = config.get("quantization_config")
    if not found:
        return
    method = found.get("quant_method") if isinstance(found, Mapping) else None
    raise ValueError(
        f"{directory / 'config.json'}: quantization_config ({one_line(str(method or found))[:60]}): its "
        "weights are quantised, and fastsft trains float weights; name the model that it was made of (LoRA "
        "with --q_lora True has it in 4 bits)"
    )


_DROPOUT = re.compile(r"(^|_)(dropout|pdrop|dropout_rate|dropout_prob|drop)$")


def check_dropouts(config: Mapping[str, Any], directory: Path) -> None:
    """ValueError for a share of dropped values that is none: transformers says so in the first step only."""
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
    from importlib.metadata import version

    return version("transformers")


MODEL, CONFIG = "AutoModelForCausalLM", "AutoConfig"
_TOKENIZER = "AutoTokenizer"


def has_model_code(config: Mapping[str, Any]) -> bool:
    """True if config.json names a model class of the directory's own code."""
    return MODEL in _classes(config)


def check_model_code(config: Mapping[str, Any], directory: Path, engine: str) -> None:
    """ValueError for --engine native, and for code that is not in files of the directory."""
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
    """`modeling_x.py` of "modeling_x.XForCausalLM"; None for what is no module of the directory."""
    parts = reference.split(".") if isinstance(reference, str) else []
    return f"{parts[0]}.py" if len(parts) == 2 and all(map(str.isidentifier, parts)) else None


def refuse_remote_code(directory: Path, config: Mapping[str, Any], *, runs_model: bool) -> None:
    """ValueError for a class in `auto_map` that transformers would take in the place of its own, and that
    is not run here.

    config: the content of config.json. runs_model: the model's own classes are. For runs that trust code;
    others train the family's own class, as transformers does.
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
    """The classes that auto_map names; old tokenizers have theirs alone."""
    found = content.get("auto_map")
    if isinstance(found, list | tuple):
        return {_TOKENIZER: found}
    return {name: each for name, each in found.items() if each} if isinstance(found, Mapping) else {}


DEFAULT_ATTENTION = "sdpa"  # of a model that transformers loads without attn_implementation


CAP = "attn_logit_softcapping"


_WITHOUT_CAP = ("sdpa",)


_DEFAULT_CAP = 50.0


def as_computed(config: Mapping[str, Any], attention: str) -> dict[str, Any]:
    """`config` as transformers computes it with the implementation `attention`.

    torch's scaled dot product has no bound of scores: transformers' sdpa leaves Gemma 2's out, and eager,
    flash and flex attention have it.
    """
    return {**config, CAP: None} if _leaves_out(config, attention) else dict(config)


def tell_left_out(config: Mapping[str, Any], attention: str, *, trains: bool = True) -> None:
    """A line where `as_computed` leaves something out; for those who compute. trains: how to keep it, too."""
    if not _leaves_out(config, attention):
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
    """The version of the installed transformers where its default attention for Gemma 2 has the bound.

    That is where Gemma 2 is loaded with eager attention because its classes refuse sdpa. Nothing is imported.
    """
    found = importlib.util.find_spec("transformers")
    if found is None or found.origin is None:
        return None
    source = Path(found.origin).parent / "models" / "gemma2" / "modeling_gemma2.py"
    if not source.is_file() or "_supports_sdpa = False" not in source.read_text(encoding="utf-8"):
        return None
    return importlib.metadata.version("transformers")


def _leaves_out(config: Mapping[str, Any], attention: str) -> bool:
    caps = config.get("model_type") == "gemma2" and config.get(CAP, _DEFAULT_CAP) is not None
    return caps and attention in _WITHOUT_CAP
