"""Noise on the embeddings: the engine beside transformers on the same noise, and its size beside theirs."""

import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.trainer_utils import neftune_post_forward_hook

from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.trainer.stepper import noise_options
from runs import labels_of
from tiny_models import conversations, make_engine, write_model

STEP = {"learning_rate": 0.0, "max_grad_norm": 0.0}
MASK = 2**64 - 1


def mixed(value):
    """splitmix64, as csrc/model/embedding_noise.cpp says."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def conversations_without_padding_id():
    """transformers neither draws nor trains the embedding of the padding id, 0 here."""
    data, found = _C.TokenDataset(), conversations()
    for row, length in enumerate(found.lengths()):
        data.append(np.maximum(found.ids(row), 1), [(length // 2, length)])
    return data


def engine_step(engine, batches, **noise):
    weights = [[0.1] * len(rows) for rows in batches]
    engine.begin_step(conversations_without_padding_id(), batches, weights, **STEP, **noise)
    (result,) = engine.take_results(all=True)
    return result.loss, result.grad_norm


def reference_step(model, batches, noise, noise_seed, smoothing=0.0):
    """Loss and gradient norm by autograd, on embeddings with the noise of torch's generator."""
    data, total = conversations_without_padding_id(), torch.zeros(())
    model.zero_grad()
    for index, rows in enumerate(batches):
        generator = torch.Generator().manual_seed(mixed((mixed(noise_seed) + index) & MASK))
        # The last token of a conversation predicts nothing and is not computed.
        tokens = sum(len(data.ids(row)) - 1 for row in rows)
        drawn = torch.empty(tokens, 32).uniform_(-noise, noise, generator=generator)
        for row in rows:
            ids, labels = torch.from_numpy(data.ids(row)).long(), labels_of(data, row)
            ids, targets = ids[:-1], labels[1:]
            mine, drawn = drawn[: len(ids)], drawn[len(ids) :]
            logits = model(inputs_embeds=(model.get_input_embeddings()(ids) + mine)[None]).logits[0]
            total = total + 0.1 * torch.nn.functional.cross_entropy(
                logits, targets, ignore_index=-100, reduction="sum", label_smoothing=smoothing
            )
    total.backward()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None))
    return float(total), norm


@pytest.mark.parametrize(("kind", "smoothing"), [("untied", 0.0), ("tied", 0.0), ("untied", 0.1)])
def test_loss_and_gradient_on_the_same_noise(tmp_path, kind, smoothing):
    directory = write_model(tmp_path, kind)
    engine, model = make_engine(directory), AutoModelForCausalLM.from_pretrained(directory)
    batches = [[0, 2, 5], [1, 3], [4]]
    for noise, seed in [(0.3, 5), (0.3, 2**61), (0.05, 6)]:
        expected = reference_step(model, batches, noise, seed, smoothing)
        found = engine_step(engine, batches, noise=noise, noise_seed=seed, label_smoothing=smoothing)
        assert found == pytest.approx(expected, rel=2e-5)
    still = engine_step(engine, batches, label_smoothing=smoothing)
    assert still == pytest.approx(reference_step(model, batches, 0.0, 0, smoothing), rel=2e-5)
    assert abs(still[0] - expected[0]) > 1e-4


def test_evaluation_and_a_replayed_step(tmp_path):
    engine = make_engine(write_model(tmp_path, "untied"))
    noise = {"noise": 0.3, "noise_seed": 7}
    quiet = engine.loss(conversations(), [0, 1], [1.0, 1.0])
    first = engine_step(engine, [[0, 1], [2]], **noise)
    assert engine_step(engine, [[0, 1], [2]], **noise, replay=True) == first  # the same noise twice
    assert engine_step(engine, [[0, 1], [2]], noise=0.3, noise_seed=8) != first
    assert engine.loss(conversations(), [0, 1], [1.0, 1.0]) == quiet


@pytest.mark.parametrize(("alpha", "length", "hidden"), [(5.0, 16, 32), (15.0, 2048, 64)])
def test_size_is_that_of_transformers(alpha, length, hidden):
    module = torch.nn.Embedding(10, hidden)
    module.neftune_noise_alpha = alpha
    torch.manual_seed(0)
    noised = neftune_post_forward_hook(module, (None,), torch.zeros(4, length, hidden))
    args = TrainingArguments("out", use_cpu=True, neftune_noise_alpha=alpha)
    size = noise_options(args, length, hidden, 1)["noise"]
    assert float(noised.abs().max()) == pytest.approx(size, rel=1e-2) and noised.abs().max() <= size


def test_seeds_differ_by_step_rank_and_run(monkeypatch):
    seeds = set()
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        for seed in (1, 42):
            args = TrainingArguments("out", use_cpu=True, neftune_noise_alpha=1.0, seed=seed)
            seeds |= {noise_options(args, 8, 8, step)["noise_seed"] for step in range(1, 50)}
    assert len(seeds) == 3 * 2 * 49
    assert noise_options(TrainingArguments("out", use_cpu=True), 8, 8, 1) == {}
    with pytest.raises(ValueError, match="neftune_noise_alpha"):
        TrainingArguments("out", use_cpu=True, neftune_noise_alpha=-1.0)
