"""Tokenizers that hold the special tokens of the chat templates."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

from fastsft import _C
from golden_text import GOLDEN, MODES

LEGACY, NONLEGACY = MODES
DEEPSEEK_END = "<\uff5cend▁of▁sentence\uff5c>"
STOPS = (
    "<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", DEEPSEEK_END,
)  # fmt: skip
HEADERS = (
    "<|start_header_id|>", "<|end_header_id|>", "<|im_start|>", "<start_of_turn>", "<|system|>", "<|user|>",
    "<|assistant|>",
)  # fmt: skip


@cache
def llama_with_specials(mode: str = LEGACY) -> Any:
    """The Llama-2 vocabulary with every template's special tokens behind it."""
    directory = GOLDEN / "tokenizers" / mode
    settings = _C.load_tokenizer(str(directory))[1].settings
    # A token with a space or U+2581 inside is not supported in non-legacy mode.
    texts = [text for text in (*STOPS, *HEADERS) if mode == LEGACY or "▁" not in text]
    settings.added = [*settings.added, *(_C.AddedToken(32000 + i, text) for i, text in enumerate(texts))]
    settings.special_ids = {*settings.special_ids, *(32000 + i for i in range(len(texts)))}
    return _C.make_llama_tokenizer(str(directory / "tokenizer.model"), settings)


@cache
def byte_level_with_specials() -> Any:
    """A small byte-level BPE, made by `tokenizers`, with every template's special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<s>", "</s>", "<unk>", *STOPS, *HEADERS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        ["It is Paris. The capital of France and of Peru.\n\nHello, hello."], trainer
    )
    settings = _C.JsonTokenizerSettings()
    settings.bos, settings.eos = "<s>", "</s>"
    return _C.parse_json_tokenizer(tokenizer.to_str(), "tokenizer.json", settings)


def named(native: Any, chat_template: str | None = None, **tokens: str) -> Any:
    """What a tokenizer object tells a Jinja template."""
    return SimpleNamespace(
        bos_token=tokens.get("bos", "<s>"),
        eos_token=tokens.get("eos", "</s>"),
        unk_token="<unk>",
        pad_token=None,
        add_bos_token=native.adds_bos,
        chat_template=chat_template,
    )
