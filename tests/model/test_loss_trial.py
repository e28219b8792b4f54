"""Classes of transformers whose own loss is another one than that of the next token over the step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2LMHeadModel

from fastsft.model.engine_choice import as_model, open_model
from generic_engines import library_model
from rows_run import ours, plain_items, theirs

SMALL = {"vocab_size": 96, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT2 = {**SMALL, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
BART = {
    **SMALL, "d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48,
    "is_encoder_decoder": False, "is_decoder": True,
}  # fmt: skip
RWKV = {**SMALL, "hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 2}


@pytest.mark.covering
@pytest.mark.parametrize("layers", [2, 12])
@pytest.mark.parametrize("kind", ["bart", "mbart"])
def test_labels_that_are_not_shifted_are_refused(kind: str, layers: int, tmp_path: Path) -> None:
    """transformers' Trainer would have each token learned from itself."""
    library_model(kind, **{**BART, "decoder_layers": layers}).save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match="has a loss of its own: expected that of each label from the tokens"
    ):
        _ = open_model(str(tmp_path)).engine_words


@pytest.mark.parametrize("settings", [{"init_std": 0.02}, {"init_std": 1e-12}])
def test_prophetnet_is_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    """It learns two tokens at once, and with small weights it answers the same at every position."""
    small = {
        **SMALL, "hidden_size": 32, "num_decoder_layers": 2, "num_decoder_attention_heads": 4,
        "decoder_ffn_dim": 48, "is_encoder_decoder": False, "is_decoder": True,
    }  # fmt: skip
    library_model("prophetnet", **small, **settings).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"has a loss of its own|the same after every token of a trial row"):
        _ = open_model(str(tmp_path)).engine_words


class Mean(GPT2LMHeadModel):  # type: ignore[misc]
    """As transformers 4's Mamba: takes the tokens of the step and divides by those of the micro-batch."""

    def forward(
        self, *args: Any, labels: object = None, num_items_in_batch: object = None, **kwargs: Any
    ) -> Any:
        return super().forward(*args, labels=labels, **kwargs)


class MeanOfMeans(GPT2LMHeadModel):  # type: ignore[misc]
    """As a class that is older than the tokens of the step."""

    def forward(
        self,
        input_ids: object = None,
        attention_mask: object = None,
        position_ids: object = None,
        labels: object = None,
        use_cache: object = None,
    ) -> Any:
        return super().forward(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, labels=labels,
            use_cache=use_cache,
        )  # fmt: skip


ADDED = "adds up the means of a step's micro-batches"


@pytest.mark.parametrize(
    ("kind", "rule"), [(Mean, ADDED), (MeanOfMeans, "trains with the mean of the means of micro-batches")]
)
def test_means_of_micro_batches_are_told(kind: Any, rule: str, caplog: pytest.LogCaptureFixture) -> None:
    assert "generic" in as_model(kind(library_model("gpt2", **GPT2).config)).engine_words
    assert (
        f"{kind.__name__} has no loss over all tokens of a step: transformers' Trainer {rule}" in caplog.text
    )


@pytest.mark.parametrize(("kind", "factor"), [(Mean, 2), (MeanOfMeans, 1)])
def test_what_is_told_of_means_is_so(kind: Any, factor: int, tmp_path: Path) -> None:
    """The first loss of two micro-batches, of rows with equally many targets."""
    items, plain = plain_items(4), {**GPT2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    flags = {"max_steps": 1, "gradient_accumulation_steps": 2, "remove_unused_columns": False}
    expected, found = (
        run(items, tmp_path / run.__name__, kind(library_model("gpt2", **plain).config), **flags)[0]
        for run in (theirs, ours)
    )
    assert factor * found == pytest.approx(expected, rel=1e-5)


def test_usual_models_are_silent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for kind, settings in (
        ("gpt2", GPT2),
        ("bloom", {**SMALL, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    ):
        library_model(kind, **settings).save_pretrained(tmp_path / kind)
        assert "generic" in open_model(str(tmp_path / kind)).engine_words
    assert "loss" not in caplog.text


def test_weights_that_evaluation_rescales_are_refused(tmp_path: Path) -> None:
    library_model("rwkv", **RWKV).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r'rescales its weights.*set "rescale_every" to 0'):
        _ = open_model(str(tmp_path)).engine_words


def test_a_given_model_that_does_not_take_the_tokens_of_a_step_is_refused() -> None:
    model: Any = library_model("gpt2", **GPT2)
    model.accepts_loss_kwargs = False
    with pytest.raises(ValueError, match="accepts_loss_kwargs is False"):
        as_model(model)


def test_a_model_without_blocks() -> None:
    """All of it is one unit."""

    class WithoutBlocks(GPT2LMHeadModel):  # type: ignore[misc]
        _no_split_modules: tuple[str, ...] = ()

    model = WithoutBlocks(library_model("gpt2", **{**GPT2, "n_layer": 0}).config)
    assert isinstance(model.transformer.h, torch.nn.ModuleList)
    assert "generic" in as_model(model).engine_words
