"""Recorded texts, ids and labels: what the original libraries made of real conversations."""

from __future__ import annotations

import gzip
import hashlib
import json
import struct
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden"
MODES = ("llama2_legacy", "llama2_nonlegacy")
CONVERSATIONS = ("dummy_conversation", "sharegpt_multi_turn", "sharegpt_single_turn")


def read_rows(folder: str, name: str) -> list[Any]:
    with gzip.open(GOLDEN / folder / f"{name}.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def digest(*parts: list[int]) -> str:
    """The first 16 hex digits of SHA-256 over little-endian int32."""
    state = hashlib.sha256()
    for part in parts:
        state.update(struct.pack(f"<{len(part)}i", *part))
    return state.hexdigest()[:16]


def conversation_file(name: str) -> Path:
    return GOLDEN / "conversations" / f"{name}.json"


def read_records(name: str) -> list[Any]:
    return json.loads(conversation_file(name).read_text("utf-8"))


def read_texts(name: str) -> list[str]:
    if name == "wiki_demo":
        return (GOLDEN / "conversations" / "wiki_demo.txt").read_bytes().decode().split("\n")
    records = read_records(name)
    if name == "tokenizer_edge_texts":
        return records
    return [message["value"] for record in records for message in record["conversations"]]


def hf_tokenizer(mode: str, max_length: int | None = None) -> Any:
    """The slow LlamaTokenizer as FastChat's train() loads it."""
    from transformers import AutoTokenizer

    options = {} if max_length is None else {"model_max_length": max_length}
    tokenizer = AutoTokenizer.from_pretrained(
        GOLDEN / "tokenizers" / mode, padding_side="right", use_fast=False, **options
    )
    if tokenizer.pad_token != tokenizer.unk_token:
        tokenizer.pad_token = tokenizer.unk_token
    return tokenizer


def human_gpt(*texts: Any) -> list[dict[str, Any]]:
    """Messages in turn from human and gpt."""
    return [{"from": ("human", "gpt")[i % 2], "value": text} for i, text in enumerate(texts)]
