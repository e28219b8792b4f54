"""Generic engines next to the transformers model whose weights they have."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engines import of_state
from fastsft import _C
from fastsft.model.generic.empty_model import empty_model
from fastsft.model.generic.generic_model import GenericModel
from fastsft.model.generic.packing_trial import why_padded
from fastsft.model.generic.stored_tensors import stored_tensors

VOCAB = 96
Rows = list[tuple[list[int], tuple[int, int]]]  # ids, and the span that is learned


def library_model(model_type: str, seed: int = 0, **settings: Any) -> Any:
    """A tiny random model of transformers in float32."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(model_type, **settings)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).float()  # a class may have others
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def generic_engine(model: Any, *, recompute: bool = False, packs: bool = False, **options: Any) -> _C.Engine:
    """The engine of `model`'s configuration with its weights. Options: of the state, and those of Engine."""
    state, others = of_state(options)
    config = json.loads(model.config.to_json_string(use_diff=False))
    made = GenericModel(empty_model(config, torch.float32), device="cpu", recompute=recompute, packs=packs)
    engine = _C.Engine(json.dumps(config), state, model=made.for_engine(), **others)
    saved = model.state_dict().keys()
    values = {
        **dict(model.named_parameters()),
        **{name: buffer for name, buffer in model.named_buffers() if name in saved},
    }
    placed = [one for unit in made.units for one in unit.parameters]
    assert {one.name for one in placed} == set(values)
    for one in placed:
        for part in one.stored:
            engine.set_parameter(part.name, part.part_of(values[one.name].detach()))
    engine.publish()
    return engine


def loaded_generic_engine(directory: Path, *, rank: int = 0, **options: Any) -> _C.Engine:
    """The engine of a model directory, on `device` and in `compute_dtype` of the options."""
    state, others = of_state(options)
    text = (directory / "config.json").read_text()
    model = empty_model(json.loads(text), getattr(torch, options.get("compute_dtype", "float32")))
    device = options.get("device", "cpu")
    made = GenericModel(model, device=device, recompute=False, packs=True, rank=rank)
    engine = _C.Engine(text, state, model=made.for_engine(), **others)
    _C.load_model(engine, str(directory))
    return engine


def by_files(model: Any, named: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Values of the parameters of `model` as tensors of its files, which transformers 5 names otherwise."""
    shapes = {name: tuple(value.shape) for name, value in named.items()}
    parts = stored_tensors(model, shapes)
    return {part.name: part.part_of(value) for name, value in named.items() for part in parts[name]}


def why_rows_are_padded(model: Any) -> str | None:
    """As a run of `model`'s configuration decides."""
    config = json.loads(model.config.to_json_string(use_diff=False))
    return why_padded(lambda small: empty_model(small, torch.float32), empty_model(config, torch.float32))


def random_rows(lengths: list[int], seed: int = 1) -> Rows:
    """Rows of these lengths, learned from their third token on."""
    generator = np.random.default_rng(seed)
    return [(generator.integers(3, VOCAB, size=length).tolist(), (2, length)) for length in lengths]


def dataset_of(rows: Rows) -> _C.TokenDataset:
    """The rows as the engine reads them."""
    dataset = _C.TokenDataset()
    for ids, learned in rows:
        dataset.append(np.asarray(ids, dtype=np.int32), [learned])
    return dataset


def _tokens_of_step(model: Any, count: float) -> dict[str, float]:
    """The argument of a class that takes it; the loss of others is the mean of the batch's labels."""
    given = inspect.signature(model.forward).parameters.values()
    takes = any(each.name == "num_items_in_batch" or each.kind is each.VAR_KEYWORD for each in given)
    return {"num_items_in_batch": count} if takes else {}


def library_loss(model: Any, rows: Rows, weight: float, masked_id: int = -1) -> torch.Tensor:
    """Sum of weight * cross entropy, by the model's own loss function over right-padded rows."""
    width = max(len(ids) for ids, _ in rows)
    input_ids = torch.zeros(len(rows), width, dtype=torch.long)
    labels = torch.full_like(input_ids, -100)
    mask = torch.zeros_like(input_ids)
    for at, (ids, (begin, end)) in enumerate(rows):
        input_ids[at, : len(ids)] = torch.tensor(ids)
        labels[at, begin:end] = input_ids[at, begin:end]
        mask[at, : len(ids)] = (input_ids[at, : len(ids)] != masked_id).long()
    loss: torch.Tensor = model(
        input_ids=input_ids,
        attention_mask=mask,
        labels=labels,
        use_cache=False,
        **_tokens_of_step(model, 1 / weight),
    ).loss
    return loss
