"""Labelling of conversations with tools against plain ones of as many tokens, by a model's own template.

    python benchmarks/bench_tool_labels.py [--pairs 5] [--records 600] [--models llama-3.1 qwen3]

Both sides are one file of `messages` records, given to make_supervised_data_module. A record with tools has
three tools, and two or three turns of a question, a call, its result and an answer. Its plain partner has as
many replies in a row and, to a few, as many tokens: the rows of both files have the same number. Tools are
either those of all records (`shared`) or each record has its own (`own`).

`cpu`: CPU seconds of this process and of those that render, from a new tokenizer, a new template process and
an empty cache on; what an empty file costs (processes that start) is taken off both sides. `seconds`: the
clock's, with all that.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import byte_level_files
import published_templates
from fastsft.data import make_supervised_data_module
from fastsft.tokenizer import Tokenizer
from golden_text import read_texts
from harness import Ratio, Run, UnequalResultsError, paired, write_result

LENGTH = 1 << 14
Record = dict[str, Any]
NOUNS = [
    "weather",
    "stock",
    "flight",
    "hotel",
    "recipe",
    "movie",
    "email",
    "calendar",
    "currency",
    "song",
    "address",
    "parcel",
]
VERBS = ["get", "find", "book", "send", "convert", "update", "delete", "list"]
FIELDS = ["city", "date", "unit", "limit", "name", "query", "account", "language", "price", "amount"]


class Words:
    """Words of recorded conversations, in order."""

    def __init__(self, seed: int) -> None:
        self._words = [word for text in read_texts("sharegpt_multi_turn") for word in text.split(" ")]
        self._at = random.Random(seed).randrange(len(self._words))

    def take(self, count: int) -> str:
        taken = [self._words[(self._at + i) % len(self._words)] for i in range(count)]
        self._at += count
        return " ".join(taken)


def make_tool(chooser: random.Random, words: Words) -> Record:
    properties = {
        name: {"type": chooser.choice(("string", "number")), "description": words.take(8)}
        for name in chooser.sample(FIELDS, 3)
    }
    parameters = {"type": "object", "properties": properties, "required": list(properties)[:2]}
    name = f"{chooser.choice(VERBS)}_{chooser.choice(NOUNS)}"
    function = {"name": name, "description": words.take(12), "parameters": parameters}
    return {"type": "function", "function": function}


def make_turn(chooser: random.Random, words: Words, tools: list[Record]) -> list[Record]:
    """A question, a call, its result and an answer."""
    function = chooser.choice(tools)["function"]
    arguments = {
        name: words.take(2) if one["type"] == "string" else chooser.randrange(1000)
        for name, one in function["parameters"]["properties"].items()
    }
    call = {
        "id": f"call_{chooser.randrange(10**6):06}",
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }
    result = json.dumps({"status": "ok", "value": words.take(10)})
    return [
        {"role": "user", "content": words.take(20)},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": result, "name": function["name"], "tool_call_id": call["id"]},
        {"role": "assistant", "content": words.take(40)},
    ]


def tool_records(count: int, shared: bool) -> list[Record]:
    chooser, words = random.Random(1), Words(1)
    tools = [make_tool(chooser, words) for _ in range(3)]
    records = []
    for number in range(count):
        own = tools if shared else [make_tool(chooser, words) for _ in range(3)]
        turns = [make_turn(chooser, words, own) for _ in range(chooser.choice((2, 3)))]
        messages = [message for turn in turns for message in turn]
        records.append({"id": f"r{number}", "tools": own, "messages": messages})
    return records


def plain_records(records: list[Record], sizes: list[list[int]], native: Any) -> list[Record]:
    """With the numbers of replies of `records`; sizes: of the rows of each record, in tokens."""
    words = Words(2)
    found = []
    for record, rows in zip(records, sizes, strict=True):
        replies = sum(message["role"] == "assistant" for message in record["messages"])
        # One row with all replies, or rows that grow by a turn each.
        steps = rows if len(rows) > 1 else [round(rows[0] * (i + 1) / replies) for i in range(replies)]
        messages, before = [], 0
        for end in steps:
            tokens = max(end - before - 14, 8)  # of the template's own: about fourteen a turn
            before = end
            text = native.encode(words.take(2 * tokens))
            cut = max(tokens // 3, 2)
            messages += [
                {"role": "user", "content": native.decode(list(text[:cut])).replace("\ufffd", "")},
                {"role": "assistant", "content": native.decode(list(text[cut:tokens])).replace("\ufffd", "")},
            ]
        found.append({"id": record["id"], "messages": messages})
    return found


def cpu_seconds() -> float:
    """Of this process and its children, ended or not."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = time.process_time() + ended.ru_utime + ended.ru_stime
    own = str(os.getpid())
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if fields[1] == own:
                seconds += (int(fields[11]) + int(fields[12])) / 100
    return seconds


def label(path: Path, model: Path) -> Any:
    """The rows of a file, with a new tokenizer and a new template process."""
    tokenizer = Tokenizer.from_pretrained(model, model_max_length=LENGTH)
    arguments = SimpleNamespace(
        data_path=str(path), eval_data_path=None, lazy_preprocess=False, mask_policy="spans",
        template="model", data_cache="none", max_dropped=1.0,
    )  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        return make_supervised_data_module(tokenizer, arguments)["train_dataset"]


def sizes_by_record(rows: Any, records: list[Record]) -> list[list[int]]:
    """Tokens of the rows of each record: one, or one for each reply."""
    replies = [sum(message["role"] == "assistant" for message in each["messages"]) for each in records]
    counts = [1] * len(records) if len(rows) == len(records) else replies
    lengths = iter([rows.length(i) for i in range(len(rows))])
    return [[next(lengths) for _ in range(count)] for count in counts]


def run(path: Path, model: Path, fixed: float) -> Run:
    start, before = time.perf_counter(), cpu_seconds()
    dataset = label(path, model)
    metrics = {"cpu": cpu_seconds() - before - fixed, "seconds": time.perf_counter() - start}
    rows = dataset.native
    return Run(metrics, (len(rows), rows.num_tokens))


def check_alike(plain: tuple[int, int], tools: tuple[int, int]) -> None:
    if plain[0] != tools[0] or abs(plain[1] / tools[1] - 1) > 0.02:
        raise UnequalResultsError(f"rows and tokens: {plain} plain, {tools} with tools")


def write(path: Path, records: list[Record]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


def write_model(folder: Path, name: str) -> Path:
    """A tokenizer of 100k tokens with the control tokens of the published template `name`, and its text."""
    published_templates.write_model(folder, name)
    path = folder / "tokenizer.json"
    small, whole = json.loads(path.read_text("utf-8")), byte_level_files.content("cl100k")
    taken = {token["content"] for token in whole["added_tokens"]}
    first = max([*whole["model"]["vocab"].values(), *(token["id"] for token in whole["added_tokens"])]) + 1
    more = [token for token in small["added_tokens"] if token["content"] not in taken]
    whole["added_tokens"] += [{**token, "id": first + i} for i, token in enumerate(more)]
    path.write_text(json.dumps(whole), "utf-8")
    return folder


def compare(folder: Path, model: Path, shared: bool, options: argparse.Namespace) -> dict[str, Ratio]:
    """Plain against tools."""
    records = tool_records(options.records, shared)
    tools = write(folder / "tools.jsonl", records)
    sizes = sizes_by_record(label(tools, model).native, records)
    native = Tokenizer.from_pretrained(model).native
    plain = write(folder / "plain.jsonl", plain_records(records, sizes, native))
    few = write(folder / "few.jsonl", records[:1])
    fixed = min(run(few, model, 0.0).metrics["cpu"] for _ in range(3))
    return paired(
        lambda: run(plain, model, fixed), lambda: run(tools, model, fixed), pairs=options.pairs,
        check=check_alike,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--records", type=int, default=600)
    parser.add_argument("--models", nargs="+", default=["llama-3.1", "qwen3"])
    options = parser.parse_args()
    results = {}
    for name in options.models:
        for kind in ("shared", "own"):
            with tempfile.TemporaryDirectory() as folder:
                model = write_model(Path(folder) / "model", name)
                found = compare(Path(folder), model, kind == "shared", options)
                results.update({f"{name} {kind} {metric}": ratio for metric, ratio in found.items()})
    write_result("bench_tool_labels", results, vars(options))
    for name, ratio in results.items():
        print(f"{name:<40}{ratio.median:8.2f} x plain")


if __name__ == "__main__":
    main()
