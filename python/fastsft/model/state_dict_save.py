"""Saves weights that a script has gathered by itself, as FastChat's older scripts do, on one rank alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.model.directory import ModelForm, install_file_set, open_file_set, write_small_files
from fastsft.model.family import ties_embeddings

if TYPE_CHECKING:
    import torch

    from fastsft import _C
    from fastsft.model.trained import TrainedRun

_SAFETENSORS_NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


def save_given_weights(
    trainer: TrainedRun, directory: str | Path, state_dict: Mapping[str, torch.Tensor]
) -> None:
    """Write a complete model directory with the tensors of `state_dict`; not collective.

    Types and split into files are those of `--save_dtype` and `--max_shard_size`. All files take their names
    together, when they are complete and durable. ValueError when `directory` is the model's own source.
    """
    from fastsft import _C

    folder, form = Path(directory), ModelForm.of(trainer)
    adapter = trainer.model.adapter_of(state_dict)
    tensors = _of_files(trainer, _untied(state_dict, trainer.model.config))
    staging = open_file_set(trainer, folder, form)
    try:
        path = staging.path
        files = _write_weights(path, tensors, form) if adapter is None else adapter.write(path)
        files += write_small_files(trainer, staging.path, form)
        name = _C.file_set_name()
        staging.commit(name, _C.Manifest(trainer.state.global_step, 1, "", files))
        install_file_set(folder, name)
    finally:
        staging.discard()


def _of_files(trainer: TrainedRun, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """By the names of files, also what has the names of transformers 5 in memory."""
    return {
        stored: part
        for name, tensor in tensors.items()
        for stored, part in trainer.model.stored_parts(name, tensor.contiguous())
    }


def _untied(state_dict: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Without the second name of tied weights, which files do not have."""
    tied = ties_embeddings(config) and "model.embed_tokens.weight" in state_dict
    return {name: value for name, value in state_dict.items() if not (tied and name == "lm_head.weight")}


def _write_weights(path: str, tensors: Mapping[str, torch.Tensor], form: ModelForm) -> list[_C.FileDigest]:
    """The digests of the files."""
    import torch

    from fastsft import _C

    dtype = _SAFETENSORS_NAMES[form.dtype]
    specs = [_C.TensorSpec(name, dtype, list(tensor.shape)) for name, tensor in tensors.items()]
    files = _C.WeightFiles(path, specs, list(range(len(specs))), form.max_shard_size)
    try:
        for tensor in tensors.values():
            whole = tensor.detach().to("cpu", getattr(torch, form.dtype)).contiguous()
            files.write(whole.reshape(-1).view(torch.uint8).numpy().data)
        return list(files.commit(sum(tensor.numel() for tensor in tensors.values())))
    except BaseException:
        files.discard()
        raise
