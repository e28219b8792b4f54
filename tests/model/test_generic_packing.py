"""Conversations of a micro-batch in one row: which models, what a run says, and ranks without rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastsft.model.engine_choice import as_model, open_model
from generic_engines import dataset_of, generic_engine, library_loss, library_model, random_rows
from generic_rows_run import GPT2

BLOOM = {"vocab_size": 96, "hidden_size": 32, "n_layer": 2, "n_head": 4}


@pytest.mark.parametrize(
    ("kind", "config", "words", "padded"),
    [("gpt2", GPT2, "; no padding", 0.0), ("bloom", BLOOM, "by length: it takes no position_ids", 1.0)],
)
def test_a_run_says_which_rows_it_has(
    kind: str, config: dict[str, Any], words: str, padded: float, tmp_path: Path
) -> None:
    """And plans micro-batches by it. The random numbers of the script stay where they were."""
    module = library_model(kind, **config)
    module.save_pretrained(tmp_path)
    before = torch.get_rng_state()
    for model in (open_model(str(tmp_path)), as_model(module)):
        assert model.engine_words.endswith(words) and model.conversation_cost()[2] == padded
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.covering
@pytest.mark.parametrize("layers", [1, 12])
@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_tokens_that_see_later_ones_are_refused(kind: str, layers: int, tmp_path: Path) -> None:
    """Each would be learned from itself. The classes of BERT are decoders where the configuration says so.

    Many layers with norms after them leave little of one token in another.
    """
    shape = {
        "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": layers, "num_attention_heads": 4,
        "intermediate_size": 48, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    library_model(kind, **shape).save_pretrained(tmp_path / "both")
    for model in (open_model(str(tmp_path / "both")), as_model(library_model(kind, **shape))):
        with pytest.raises(ValueError, match="see those that come after them"):
            _ = model.engine_words
    decoder = library_model(kind, **shape, is_decoder=True)
    assert (
        "rows right-padded" in as_model(decoder).engine_words
        or "no padding" in as_model(decoder).engine_words
    )


def test_a_state_that_is_kept_from_call_to_call_is_refused(tmp_path: Path) -> None:
    """Rows would go on from each other, and backward would reach into the micro-batch before."""
    shape = {
        "vocab_size": 96, "hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "lru_width": 32, "attention_window_size": 16,
        "block_types": ["recurrent", "recurrent", "attention"],
    }  # fmt: skip
    library_model("recurrent_gemma", **shape).save_pretrained(tmp_path)
    for model in (open_model(str(tmp_path)), as_model(library_model("recurrent_gemma", **shape))):
        with pytest.raises(ValueError, match=r"keeps the state of a call .*rg_lru\.recurrent_states"):
            _ = model.engine_words


def _hooked(module: Any) -> None:
    module.transformer.h[0].register_forward_hook(lambda *given: None)


def _replaced(module: Any) -> None:
    attention = module.transformer.h[0].attn
    attention.forward = attention.forward


def _flash(module: Any) -> None:
    module.config._attn_implementation = "flex_attention"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_hooked, "hooks, methods or modules of its own"),
        (_replaced, "hooks, methods or modules of its own"),
        (_flash, "its attention is flex_attention"),
    ],
)
def test_a_changed_model_is_padded(change: Any, why: str) -> None:
    module = library_model("gpt2", **GPT2)
    change(module)
    assert why in as_model(module).engine_words


def test_the_loss_of_rows_without_tokens() -> None:
    """Ranks compute them next to others that have some."""
    engine = generic_engine(library_model("gpt2", **GPT2), packs=True)
    assert engine.loss(dataset_of([]), np.arange(0), np.ones(0)) == 0


def test_windows_shorter_than_rows() -> None:
    settings = {
        "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 48, "num_local_experts": 4, "sliding_window": 3,
    }  # fmt: skip
    model, rows = library_model("mixtral", **settings).train(), random_rows([20, 4, 11])
    loss = generic_engine(model, packs=True).loss(dataset_of(rows), np.arange(3), np.full(3, 0.05))
    assert loss == pytest.approx(library_loss(model, rows, 0.05).item(), rel=1e-6)
    model.config.sliding_window = None
    assert loss != pytest.approx(library_loss(model, rows, 0.05).item(), rel=1e-4)
