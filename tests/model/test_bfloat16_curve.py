"""bfloat16 compute over float32 masters: the loss curve of real conversations beside that of float32."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engines import new_engine, train_step
from fastsft import _C
from fastsft.tokenizer import Tokenizer
from fastsft.train import preprocess
from runs import append_labelled
from tolerances import BFLOAT16_CURVE, BFLOAT16_MOMENTS_CURVE

VOCAB, STEPS, BATCH, LENGTH = 1000, 30, 4, 128
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"sliding_window": 24},
    "qwen2": {"tie_word_embeddings": True},
    "gemma2": {"sliding_window": 24, "query_pre_attn_scalar": 16},
    "gemma3_text": {"sliding_window": 24, "sliding_window_pattern": 2, "query_pre_attn_scalar": 16},
}


@pytest.fixture(scope="module")
def conversations(golden: Path) -> _C.TokenDataset:
    """The multi-turn data, cut to LENGTH tokens; rare tokens are one, so that a small head is enough."""
    records = json.loads((golden / "conversations" / "sharegpt_multi_turn.json").read_text())
    tokenizer = Tokenizer.from_pretrained(str(golden / "tokenizers" / "llama2_nonlegacy"))
    tokenizer.model_max_length = LENGTH
    batch = preprocess([record["conversations"] for record in records[: STEPS * BATCH]], tokenizer)
    counts = Counter(batch["input_ids"].flatten().tolist())
    rank = {token: min(i, VOCAB - 1) for i, (token, _) in enumerate(counts.most_common())}
    dataset = _C.TokenDataset()
    for row, (ids, labels) in enumerate(zip(batch["input_ids"], batch["labels"], strict=True)):
        length = int(batch["attention_mask"][row].sum())
        kept = [rank[token] for token in ids[:length].tolist()]
        learned = labels[:length].ne(-100).tolist()
        append_labelled(dataset, kept, [t if keep else -100 for t, keep in zip(kept, learned, strict=True)])
    return dataset


def curve(dataset: _C.TokenDataset, family: str, dtype: str, **options: str) -> np.ndarray:
    """The loss of STEPS optimizer steps, token mean."""
    config = {
        "model_type": family, "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        **MODELS.get(family, {}),
    }  # fmt: skip
    engine = new_engine(json.dumps(config), compute_dtype=dtype, **options)
    generator = torch.Generator().manual_seed(0)
    identity = 0 if family.startswith("gemma") else 1  # Gemma's norms multiply by 1 + weight
    for name, shape in _C.parameter_shapes(json.dumps(config)):
        fresh = 0.05 * torch.randn(shape, generator=generator)
        engine.set_parameter(name, identity + fresh if name.endswith("norm.weight") else fresh)
    engine.publish()
    order, counts = np.random.default_rng(0).permutation(len(dataset)), dataset.target_counts()
    losses = []
    for step in range(STEPS):
        rows = np.take(order, range(step * BATCH, (step + 1) * BATCH), mode="wrap")
        weights = np.full(BATCH, 1 / counts[rows].sum())
        losses.append(train_step(engine, dataset, [rows], [weights], learning_rate=2e-3).loss)
    return np.array(losses)


@pytest.mark.variants("[llama]", "[qwen3]", "[gemma2]")
@pytest.mark.parametrize("family", _C.model_families())
def test_curve_stays_in_the_band(conversations: _C.TokenDataset, family: str) -> None:
    wide, narrow = (curve(conversations, family, dtype) for dtype in ("float32", "bfloat16"))
    apart = np.abs(narrow - wide)
    print(f"{family}: {wide[0]:.3f} to {wide[-1]:.3f}; apart {apart.max():.4f}, mean {apart.mean():.4f}")
    assert wide[-5:].mean() < wide[:5].mean() - 0.7, "nothing is learned"
    assert 0 < apart.max() <= BFLOAT16_CURVE.largest and apart.mean() <= BFLOAT16_CURVE.mean


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_moments_of_bfloat16_stay_in_the_band(conversations: _C.TokenDataset, dtype: str) -> None:
    wide, narrow = (
        curve(conversations, "llama", dtype, optim_dtype=moments) for moments in ("float32", "bfloat16")
    )
    apart = np.abs(narrow - wide)
    print(f"moments, {dtype} compute: apart {apart.max():.4f}, mean {apart.mean():.4f}")
    band = BFLOAT16_MOMENTS_CURVE
    assert 0 < apart.max() <= band.largest and apart.mean() <= band.mean
