"""Every model family against what transformers computed: logits, loss and every gradient."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from engines import new_engine
from fastsft import _C
from reference import Decoder
from runs import append_labelled, labels_of
from tolerances import TOLERANCES, assert_close

FOLDER = Path(__file__).parents[1] / "golden" / "models"
MODELS = sorted(path.parent.name for path in FOLDER.glob("*/config.json"))


class Recorded:
    """A recorded model and batch, as an engine and a data set."""

    def __init__(
        self, folder: Path, recompute: str = "selective", dtype: str = "float32", **options: Any
    ) -> None:
        self.config = (folder / "config.json").read_text()
        self.summary = json.loads((folder / "summary.json").read_text())
        self.weights = load_file(folder / "model.safetensors")
        inputs = load_file(folder / "inputs.safetensors")
        self.mask = inputs["attention_mask"].bool()
        self.dataset = _C.TokenDataset()
        self.ids, self.lengths = inputs["input_ids"][self.mask].numpy(), self.mask.sum(1).numpy()
        for ids, labels, mask in zip(inputs["input_ids"], inputs["labels"], self.mask, strict=True):
            append_labelled(self.dataset, ids[mask].tolist(), labels[mask].tolist())
        self.engine = new_engine(self.config, recompute=recompute, compute_dtype=dtype, **options)
        for name, tensor in self.weights.items():
            self.engine.set_parameter(name, tensor)
        self.engine.publish()

    def gradients(self) -> tuple[float, dict[str, torch.Tensor]]:
        weights = np.full(len(self.dataset), 1 / self.summary["label_tokens"])
        return self.engine.gradients(self.dataset, np.arange(len(self.dataset)), weights)


def test_every_family_is_recorded() -> None:
    kinds = {json.loads((FOLDER / name / "config.json").read_text())["model_type"] for name in MODELS}
    assert kinds == set(_C.model_families())


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_transformers(golden: Path, name: str) -> None:
    recorded = Recorded(golden / "models" / name)
    logits = recorded.engine.logits(recorded.ids, recorded.lengths)
    expected = load_file(golden / "models" / name / "logits.safetensors")["logits"]
    assert_close(logits, expected[recorded.mask], "model", "logits")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("recompute", ["none", "selective", "gate_up", "block"])
def test_loss_and_gradients_equal_transformers(golden: Path, name: str, recompute: str) -> None:
    recorded = Recorded(golden / "models" / name, recompute)
    loss, gradients = recorded.gradients()
    assert loss == pytest.approx(recorded.summary["loss"], abs=TOLERANCES[torch.float32].loss)
    expected = load_file(golden / "models" / name / "grads.safetensors")
    assert gradients.keys() == expected.keys()
    for key, gradient in expected.items():
        assert_close(gradients[key], gradient, "model", key)


@pytest.mark.parametrize("name", MODELS)
def test_recompute_changes_no_bit(golden: Path, name: str) -> None:
    loss, gradients = Recorded(golden / "models" / name, "selective").gradients()
    for recompute in ("none", "gate_up", "block"):
        again, others = Recorded(golden / "models" / name, recompute).gradients()
        assert loss == again
        assert all(torch.equal(gradient, others[key]) for key, gradient in gradients.items())


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_is_near_float32(golden: Path, name: str) -> None:
    folder = golden / "models" / name
    wide, narrow = Recorded(folder), Recorded(folder, dtype="bfloat16")
    (loss, gradients), (low_loss, low_gradients) = wide.gradients(), narrow.gradients()
    assert low_loss == pytest.approx(loss, abs=TOLERANCES[torch.bfloat16].loss)
    for key, gradient in gradients.items():
        assert (low_gradients[key] - gradient).norm() <= 0.1 * gradient.norm(), key


def test_conversations_do_not_see_each_other(golden: Path) -> None:
    recorded = Recorded(golden / "models" / "llama")
    weights = np.full(1, 0.5)
    together = recorded.engine.loss(recorded.dataset, np.arange(3), np.full(3, 0.5))
    apart = sum(recorded.engine.loss(recorded.dataset, np.array([row]), weights) for row in range(3))
    assert together == pytest.approx(apart, abs=1e-5)


def test_label_smoothing_equals_plain_torch(golden: Path) -> None:
    recorded = Recorded(golden / "models" / "llama")
    weights = {k: v.requires_grad_() for k, v in recorded.weights.items()}
    boundaries = [0, *np.cumsum(recorded.lengths).tolist()]
    labels = torch.cat([labels_of(recorded.dataset, row) for row in range(len(recorded.dataset))])
    expected = Decoder(json.loads(recorded.config), weights).loss(
        torch.from_numpy(recorded.ids), labels, boundaries, [0.1] * 3, label_smoothing=0.1
    )
    expected.backward()
    loss, gradients = recorded.engine.gradients(
        recorded.dataset, np.arange(3), np.full(3, 0.1), label_smoothing=0.1
    )
    assert loss == pytest.approx(expected.item(), abs=1e-5)
    for key, weight in weights.items():
        assert_close(gradients[key], weight.grad, "model", key)


def test_one_bad_id_is_named_before_the_step(golden: Path) -> None:
    recorded = Recorded(golden / "models" / "llama")
    recorded.dataset.append(np.array([1, 512, 3], dtype=np.int32), [(1, 3)])
    with pytest.raises(ValueError, match="id 512, which is not in the model's vocabulary of 512"):
        recorded.engine.gradients(recorded.dataset, np.array([3]), np.ones(1))
    weights = np.full(3, 1 / recorded.summary["label_tokens"])
    loss, _ = recorded.engine.gradients(recorded.dataset, np.arange(3), weights)
    assert loss == pytest.approx(recorded.summary["loss"], abs=1e-5)
