"""Tokenizer speed on one core, side by side with peers in one process, ids compared first.

usage: python benchmarks/bench_tokenizer.py --tokenizer gpt2=gpt2.json llama2=llama2_dir --texts a.json b.txt

A tokenizer is a tokenizer.json (or its .gz) or a directory with a tokenizer.model. Texts are ShareGPT files
(each message a text), lists of strings, or .txt files (each line). Peers that are installed take part:
tokenizers (encode_batch), tiktoken (a tokenizer.json whose merges are ranks), gigatoken, sentencepiece. Each
round times every side once; a round of ours is the whole corpus through `encode_flat`. "cold" is the first
pass of a fresh tokenizer.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import importlib.util
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

Encode = Callable[[list[str]], Any]


def read_texts(path: Path) -> list[str]:
    if path.suffix == ".txt":
        return path.read_text("utf-8").split("\n")
    items = json.loads(path.read_text("utf-8"))
    return [
        t for item in items for t in ([item] if isinstance(item, str) else map(_value, item["conversations"]))
    ]


def _value(message: dict[str, str]) -> str:
    return message["value"]


def read_json(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


class Ours:
    """Flat ids of a corpus."""

    def __init__(self, path: Path) -> None:
        from fastsft import _C
        from fastsft.tokenizer import Tokenizer

        if path.is_dir():
            self.native = Tokenizer.from_pretrained(path).native
        else:
            self.native = _C.parse_json_tokenizer(read_json(path), path.name, _C.JsonTokenizerSettings())
        self.plain = path.is_dir()  # sentencepiece knows no special tokens in a text

    def __call__(self, texts: list[str]) -> Any:
        return self.native.encode_flat(texts, self.plain)

    @staticmethod
    def rows(result: Any) -> list[list[int]]:
        ids, ends = result
        begins = [0, *ends[:-1]]
        return [ids[a:b].tolist() for a, b in zip(begins, ends, strict=True)]


def peer_tokenizers(path: Path) -> tuple[Encode, Callable[[Any], list[list[int]]]] | None:
    if path.is_dir():
        return None
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_str(read_json(path))
    return (
        lambda texts: tokenizer.encode_batch(texts, add_special_tokens=False),
        lambda result: [encoding.ids for encoding in result],
    )


def peer_tiktoken(path: Path) -> tuple[Encode, Callable[[Any], list[list[int]]]] | None:
    if path.is_dir() or not _is_ranked(content := json.loads(read_json(path))):
        return None
    import tiktoken

    alphabet = _alphabet()
    ranks = {bytes(alphabet[c] for c in text): i for text, i in content["model"]["vocab"].items()}
    pattern = content["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    special = {token["content"]: token["id"] for token in content["added_tokens"]}
    encoding = tiktoken.Encoding("ranked", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    return (
        lambda texts: [encoding.encode(text, allowed_special="all") for text in texts],
        lambda result: result,
    )


def _is_ranked(content: dict[str, Any]) -> bool:
    return bool(content["model"].get("ignore_merges")) and "pretokenizers" in content["pre_tokenizer"]


def _alphabet() -> dict[str, int]:
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}


def peer_gigatoken(path: Path) -> tuple[Encode, Callable[[Any], list[list[int]]]] | None:
    import gigatoken

    if path.is_dir():
        tokenizer = gigatoken.Tokenizer.from_sentencepiece(path / "tokenizer.model")
    else:
        tokenizer = gigatoken.Tokenizer.from_json(read_json(path))
    return (
        lambda texts: tokenizer.encode_batch(texts, parallel=False),
        lambda result: result.to_list(),
    )


def peer_sentencepiece(path: Path) -> tuple[Encode, Callable[[Any], list[list[int]]]] | None:
    if not path.is_dir():
        return None
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(path / "tokenizer.model"))
    return lambda texts: processor.encode(texts, num_threads=1), lambda result: result


PEERS = {
    "tokenizers": peer_tokenizers,
    "tiktoken": peer_tiktoken,
    "gigatoken": peer_gigatoken,
    "sentencepiece": peer_sentencepiece,
}


def seconds(encode: Encode, texts: list[str]) -> float:
    gc.collect()
    gc.disable()
    begin = time.process_time()
    encode(texts)
    taken = time.process_time() - begin
    gc.enable()
    return taken


def measure(
    name: str, path: Path, texts: list[str], rounds: int, peers: list[str]
) -> dict[str, harness.Ratio]:
    ours = Ours(path)
    expected = Ours.rows(ours(texts))
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    results: dict[str, harness.Ratio] = {}
    for peer in peers:
        made = PEERS[peer](path) if importlib.util.find_spec(peer) else None
        if made is None:
            continue
        encode, rows = made
        begin = time.process_time()
        first = encode(texts)
        theirs_cold = time.process_time() - begin
        differing = sum(a != b for a, b in zip(rows(first), expected, strict=True))
        if differing:
            raise harness.UnequalResultsError(f"{name}: {peer} gives other ids for {differing} texts")
        del first
        pairs = [
            (megabytes / seconds(encode, texts), megabytes / seconds(ours, texts)) for _ in range(rounds)
        ]
        results[f"{name} / {peer}"] = ratio(pairs)
        fresh = Ours(path)
        cold = [(megabytes / theirs_cold, megabytes / seconds(fresh, texts))]
        results[f"{name} / {peer} cold"] = ratio(cold)
    return results


def ratio(pairs: list[tuple[float, float]]) -> harness.Ratio:
    ratios = [ours / theirs for theirs, ours in pairs]
    return harness.Ratio(
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        statistics.median(theirs for theirs, _ in pairs),
        statistics.median(ours for _, ours in pairs),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokenizer", nargs="+", required=True, metavar="NAME=PATH")
    parser.add_argument("--texts", nargs="+", required=True, type=Path)
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--name", default="tokenizer")
    args = parser.parse_args()
    texts = [text for path in args.texts for text in read_texts(path)]
    results: dict[str, harness.Ratio] = {}
    for item in args.tokenizer:
        name, path = item.split("=", 1)
        results |= measure(name, Path(path), texts, args.rounds, args.peers)
    size = sum(len(text.encode()) for text in texts)
    settings = {
        "texts": len(texts),
        "bytes": size,
        "rounds": args.rounds,
        "unit": "MB/s of process time, one core",
    }
    harness.write_result(args.name, results, settings)


if __name__ == "__main__":
    main()
