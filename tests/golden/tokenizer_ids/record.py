"""Recorder of the ids that the original tokenizer libraries give, without BOS and other added tokens.

All ids of the hard texts; of each message or line of the other files the number of ids and a hash.
`llama2_spm` is SentencePiece itself, in which `</s>` in a text is text. `llama2_legacy` and
`llama2_nonlegacy` are the slow LlamaTokenizer, in which it is a token. `gpt2` and `cl100k` are `tokenizers`.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from functools import partial
from pathlib import Path

from recording import Recorder, each_file, write_json_lines

from golden_text import CONVERSATIONS, GOLDEN, digest, hf_tokenizer, read_texts

TOKENIZERS = ("gpt2", "cl100k", "llama2_spm", "llama2_legacy", "llama2_nonlegacy")
WITH_ALL_IDS = "tokenizer_edge_texts"


def encoder(name: str) -> Callable[[str], list[int]]:
    """Return the library's function from a text to ids."""
    folder = GOLDEN / "tokenizers"
    if name in ("gpt2", "cl100k"):
        import tokenizers

        fast = tokenizers.Tokenizer.from_buffer(
            gzip.decompress((folder / name / "tokenizer.json.gz").read_bytes())
        )
        return lambda text: fast.encode(text, add_special_tokens=False).ids
    if name == "llama2_spm":
        import sentencepiece

        model = folder / "llama2_legacy" / "tokenizer.model"
        return sentencepiece.SentencePieceProcessor(model_file=str(model)).encode
    slow = hf_tokenizer(name)
    return lambda text: slow(text, add_special_tokens=False).input_ids


def write(texts: str, name: str, path: Path) -> None:
    encode = encoder(name)
    rows = [encode(text) for text in read_texts(texts)]
    write_json_lines(path, rows if texts == WITH_ALL_IDS else [[len(ids), digest(ids)] for ids in rows])


RECORDER = Recorder(
    libraries={"transformers": "4.57.6", "tokenizers": "0.22.2", "sentencepiece": "0.2.3"},
    parts=each_file(
        {
            f"{texts}.{name}.jsonl.gz": partial(write, texts, name)
            for texts in (WITH_ALL_IDS, *CONVERSATIONS, "wiki_demo")
            for name in TOKENIZERS
        }
    ),
)
