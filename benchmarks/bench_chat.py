"""FastChat's `preprocess` against ours: file to labelled tokens, same files, ids and labels compared.

    python benchmarks/bench_chat.py [--pairs 5] [--length 2048]

Baseline: json.load, then fastchat.train.train.preprocess on the records in one call (what SupervisedDataset
does). Ours: make_supervised_data_module from the same file. `cold` loads a new tokenizer for each run, so
that no word has been seen before (loading is not timed on either side); `warm` keeps it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import numpy as np

from fastsft.data import make_supervised_data_module, preprocess
from fastsft.tokenizer import Tokenizer
from golden_text import CONVERSATIONS, GOLDEN, conversation_file, hf_tokenizer
from harness import Run, UnequalResultsError, paired, write_result

Evidence = tuple[Any, Any]


def run_fastchat(path: Path, tokenizer: Any) -> Run:
    from fastchat.train import train

    start = time.perf_counter()
    records = json.loads(path.read_text("utf-8"))
    out = train.preprocess([record["conversations"] for record in records], tokenizer)
    seconds = time.perf_counter() - start
    return Run({"seconds": seconds}, (out["input_ids"].numpy(), out["labels"].numpy()))


def run_file(path: Path, tokenizer: Tokenizer) -> Run:
    arguments = SimpleNamespace(data_path=str(path), eval_data_path=None, lazy_preprocess=False)
    start = time.perf_counter()
    dataset = make_supervised_data_module(tokenizer, arguments)["train_dataset"]
    seconds = time.perf_counter() - start
    return Run({"seconds": seconds}, (dataset.input_ids.numpy(), dataset.labels.numpy()))


def run_tensors(path: Path, tokenizer: Tokenizer) -> Run:
    start = time.perf_counter()
    records = json.loads(path.read_text("utf-8"))
    out = preprocess([record["conversations"] for record in records], tokenizer)
    seconds = time.perf_counter() - start
    return Run({"seconds": seconds}, (out["input_ids"].numpy(), out["labels"].numpy()))


def check_equal(baseline: Evidence, ours: Evidence) -> None:
    for name, a, b in zip(("ids", "labels"), baseline, ours, strict=True):
        if not np.array_equal(a, b):
            raise UnequalResultsError(f"{name} differ in {(a != b).any(axis=1).sum()} rows")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--mode", default="llama2_nonlegacy")
    options = parser.parse_args()
    folder = GOLDEN / "tokenizers" / options.mode
    theirs = hf_tokenizer(options.mode, options.length)

    def fresh() -> Tokenizer:
        tokenizer = Tokenizer.from_pretrained(folder, model_max_length=options.length)
        tokenizer.pad_token = tokenizer.unk_token
        return tokenizer

    results = {}
    for name in CONVERSATIONS:
        path, warm = conversation_file(name), fresh()
        sides = {
            "cold": lambda path=path: run_file(path, fresh()),
            "warm": lambda path=path, warm=warm: run_file(path, warm),
            "tensors": lambda path=path: run_tensors(path, fresh()),
        }
        for label, side in sides.items():
            ratios = paired(
                lambda path=path: run_fastchat(path, theirs), side, pairs=options.pairs, check=check_equal
            )
            results[f"{name} {label}"] = ratios["seconds"]
    write_result("bench_chat", results, vars(options))
    for name, ratio in results.items():
        print(f"{name:<40}{1 / ratio.median:8.1f} x FastChat")


if __name__ == "__main__":
    main()
