"""Saves weights that a script has gathered by itself, as FastChat's older scripts do, on one rank alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.model.directory import ModelForm, open_file_set, write_small_files
from fastsft.model.family import ties_embeddings
from fastsft.model.file_sets import install_file_set, note_file_set
from fastsft.model.stored_weights import BITS, StoredWeights, bits_of

if TYPE_CHECKING:
    import torch

    from fastsft import _C
    from fastsft.model.causal_lm import CausalLM
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
        files = _write_weights(path, tensors, form, trainer.model) if adapter is None else adapter.write(path)
        files += write_small_files(trainer, staging.path, form)
        name = _C.file_set_name()
        note_file_set(folder, files)
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


def _write_weights(
    path: str, tensors: Mapping[str, torch.Tensor], form: ModelForm, model: CausalLM
) -> list[_C.FileDigest]:
    """Write `tensors`, and those of the model's directory that are in no engine. The digests of the files."""
    import torch

    from fastsft import _C

    carried = {each.name: each for each in model.carried() if each.name not in tensors}
    forms = [(name, _SAFETENSORS_NAMES[form.dtype], list(tensor.shape)) for name, tensor in tensors.items()]
    forms += [(each.name, each.dtype, list(each.shape)) for each in carried.values()]
    order = sorted(range(len(forms)), key=lambda number: -BITS[forms[number][1]])
    stored = StoredWeights(model.source_directory) if carried else None
    files = _C.WeightFiles(path, [_C.TensorSpec(*each) for each in forms], order, form.max_shard_size)
    try:
        for name in (forms[number][0] for number in order):
            if stored is not None and name in carried:
                whole = stored.read_any(name)
            else:
                whole = tensors[name].detach().to("cpu", getattr(torch, form.dtype)).contiguous()
            files.write(bits_of(whole))
        counts = (each.numel() for each in tensors.values()), (each.count for each in carried.values())
        return list(files.commit(sum(map(sum, counts))))
    except BaseException:
        files.discard()
        raise
