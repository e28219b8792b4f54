"""Says what a directory is in which no model was found, and the way to a model."""

from __future__ import annotations

from pathlib import Path


def no_config(directory: str | Path) -> ValueError:
    """Return the error for a directory without config.json."""
    way = _way_to_config(Path(directory))
    return ValueError(f"{directory}: expected a Hugging Face model directory, found no config.json; {way}")


def no_weights(directory: str | Path, expected: str) -> ValueError:
    """Return the error for a directory without weight files. expected: the files that could be there."""
    way = _way_of_adapter(Path(directory)) or _other_format(Path(directory)) or _COPY
    return ValueError(f"{directory}: expected {expected}, found none; {way}")


_COPY = "copy or download the weights, too"


def _way_of_adapter(directory: Path) -> str:
    """Return advice if the directory has a LoRA adapter; else ""."""
    if not (directory / "adapter_config.json").is_file():
        return ""
    return (
        "it has a LoRA adapter: name its base model, and train on with --lora_weight_path "
        f"{directory}, or make one model of the two with fastsft merge"
    )


def _way_to_config(directory: Path) -> str:
    if adapter := _way_of_adapter(directory):
        return adapter
    if other := _other_format(directory):
        return other
    # The second pattern: a folder of the hub's cache.
    if inside := sorted([*directory.glob("*/config.json"), *directory.glob("snapshots/*/config.json")]):
        return f"there is one in {inside[-1].parent}"
    if not (directory.is_dir() and any(directory.iterdir())):
        return f"the directory is empty: hf download NAME --local-dir {directory} fetches a model into it"
    return "copy or download the whole directory of a model"


def _other_format(directory: Path) -> str:
    """Return advice if the weights have another program's format; else ""."""
    for suffix, kind in (("gguf", "a GGUF file, of llama.cpp"), ("onnx", "an ONNX file")):
        if next(directory.glob(f"*.{suffix}"), None):
            return f"it has {kind}: name the safetensors model that it was made of"
    if (directory / "model_index.json").is_file():
        return "it is a pipeline of diffusers, which makes pictures: name a language model"
    if next(directory.glob("consolidated*"), None):
        return "its weights have the format of their maker: name the model in transformers' format"
    return ""
