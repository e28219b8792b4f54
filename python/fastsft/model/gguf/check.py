"""Compare a GGUF file with its model, tensor by tensor, in a process that can import the package gguf."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.model.gguf.expected import expected_names, expected_value
from fastsft.model.stored_weights import StoredWeights

if TYPE_CHECKING:
    import torch

# Made by the converter from the configuration.
_EXTRA = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}
_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def main(directory: Path, file: Path) -> dict[str, Any]:
    """Return the number of tensors and the architecture, or a problem, for the model in `directory`."""
    import gguf

    reader = gguf.GGUFReader(file)
    architecture = str(reader.get_field("general.architecture").contents())
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config = {**config, **config.get("text_config", {})}
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, int(config["num_hidden_layers"]))
    found = {tensor.name: tensor for tensor in reader.tensors}
    stored = StoredWeights(directory)
    used: set[str] = set()
    pairs = expected_names(stored.tensors, lambda name: names.get_name(name, (".weight", ".bias")))
    for name, mapped, place in pairs:
        if mapped == "output.weight" and mapped not in found:
            mapped = "token_embd.weight"  # llama.cpp takes it for a tied head
        if mapped not in found:
            return {"problem": f"{name}: expected the tensor {mapped}, which is not in the file"}
        used.add(mapped)
        expected = expected_value(name, stored.read(name), architecture, config)
        problem = difference(expected, _value(found[mapped], place), found[mapped].tensor_type.name)
        if problem:
            return {"problem": f"{name}: {mapped}: {problem}"}
    if unknown := sorted(found.keys() - used - _EXTRA):
        return {"problem": f"the file has tensors that the model has not: {', '.join(unknown[:5])}"}
    return {"tensors": len(found), "architecture": architecture}


def _value(tensor: Any, place: int | None) -> torch.Tensor:
    import gguf
    import torch

    data = tensor.data if place is None else tensor.data[place]
    return torch.from_numpy(gguf.quants.dequantize(data, tensor.tensor_type).copy())


def difference(expected: torch.Tensor, got: torch.Tensor, kind: str) -> str:
    """Return how two tensors differ; "" if they have the same values after rounding to the file's type."""
    import torch

    if kind not in _TYPES:
        return f"expected one of {', '.join(_TYPES)}, got {kind}"
    if expected.shape != got.shape:
        return f"expected the shape {tuple(expected.shape)}, got {tuple(got.shape)}"
    rounded = expected.to(getattr(torch, _TYPES[kind])).float()
    if lost := int((rounded.isinf() & ~expected.isinf()).sum()):
        return f"{lost} values are too large for {_TYPES[kind]}; the way out: --outtype bf16 or f32"
    wrong = ~((rounded == got) | (rounded.isnan() & got.isnan()))
    if not wrong.any():
        return ""
    at = tuple(int(index) for index in wrong.nonzero()[0])
    return f"{int(wrong.sum())} values differ; at {list(at)} expected {rounded[at]}, got {got[at]}"


def program(arguments: Sequence[str]) -> None:
    """Print the result of `main` as JSON, or an exception as a problem. arguments: program, model, file."""
    try:
        result = main(Path(arguments[1]), Path(arguments[2]))
    except Exception as error:  # any fault of a file or of the package is a problem of the check
        result = {"problem": f"{type(error).__name__}: {error}"}
    print(json.dumps(result))
