"""Recorder of tokenizer directories: two around Llama 2's SentencePiece model, its fast form, and cl100k's.

The two directories differ in `legacy` alone. The fast form is transformers' conversion. cl100k has the form
of Llama 3: tiktoken's ranks by transformers' TikTokenConverter, five special tokens, and the first of them
before each text. tiktoken fetches its ranks once, into its cache.
"""

from __future__ import annotations

import tempfile
from base64 import b64encode
from functools import partial
from pathlib import Path

from recording import GOLDEN, Part, Recorder, each_file, write_bytes, write_json

MODES = {"llama2_legacy": True, "llama2_nonlegacy": False}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<unk>"}
MODEL = GOLDEN / "tokenizers" / "llama2_legacy" / "tokenizer.model"
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CL100K_SPECIAL = [
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
]  # fmt: skip


def special_token(text: str) -> dict[str, object]:
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {"__type": "AddedToken", "content": text, **flags}


def write_llama(mode: str, folder: Path) -> None:
    """Write a directory for the slow LlamaTokenizer, `pad_token` like FastChat's."""
    config = {
        "add_bos_token": True,
        "add_eos_token": False,
        **{name: special_token(text) for name, text in SPECIAL.items()},
        "clean_up_tokenization_spaces": False,
        "legacy": MODES[mode],
        "model_max_length": 4096,
        "padding_side": "right",
        "sp_model_kwargs": {},
        "tokenizer_class": "LlamaTokenizer",
    }
    write_json(folder / mode / "tokenizer_config.json", config, indent=2)
    write_json(folder / mode / "special_tokens_map.json", SPECIAL, indent=2)


def write_fast(path: Path) -> None:
    from transformers import LlamaTokenizerFast

    fast = LlamaTokenizerFast.from_pretrained(GOLDEN / "tokenizers" / "llama2_legacy")
    write_bytes(path, fast.backend_tokenizer.to_str(pretty=False).encode())


def write_cl100k(path: Path) -> None:
    """Write the converted ranks, after a comparison with tiktoken by the hard texts."""
    import tiktoken
    from tokenizers import processors
    from transformers.convert_slow_tokenizer import TikTokenConverter

    from golden_text import read_texts

    ranks = tiktoken.get_encoding("cl100k_base")._mergeable_ranks
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ranks.tiktoken"
        file.write_bytes(b"".join(b64encode(text) + b" %d\n" % rank for text, rank in ranks.items()))
        fast = TikTokenConverter(str(file), PATTERN, additional_special_tokens=CL100K_SPECIAL).converted()
    first = CL100K_SPECIAL[0]
    ids = {text: fast.token_to_id(text) for text in CL100K_SPECIAL}
    fast.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(
            single=f"{first} $A", pair=f"{first} $A {first} $B", special_tokens=[(first, ids[first])]
        ),
    ])  # fmt: skip
    exact = tiktoken.Encoding("exact", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=ids)
    for text in read_texts("tokenizer_edge_texts"):
        theirs = exact.encode(text, allowed_special="all")
        assert fast.encode(text, add_special_tokens=False).ids == theirs, text
    write_bytes(path, fast.to_str(pretty=False).encode())


def llama_part(mode: str) -> Part:
    files = (f"{mode}/tokenizer_config.json", f"{mode}/special_tokens_map.json")
    return Part(files, partial(write_llama, mode))


RECORDER = Recorder(
    libraries={
        "transformers": "4.57.6",
        "tokenizers": "0.22.2",
        "sentencepiece": "0.2.3",
        "tiktoken": "0.14.0",
    },
    parts={
        **{mode: llama_part(mode) for mode in MODES},
        **each_file({"llama2_fast.json.gz": write_fast, "cl100k/tokenizer.json.gz": write_cl100k}),
    },
    given={
        "gpt2/tokenizer.json.gz": "tokenizer.json of the model openai-community/gpt2",
        **{f"{mode}/tokenizer.model": "the vocabulary of Llama 2 (NOTICE.md)" for mode in MODES},
    },
)
