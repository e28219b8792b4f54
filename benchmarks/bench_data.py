"""Data files: JSON to records, file to token cache, second start, memory; peers are json.load and FastChat.

    python benchmarks/bench_data.py [--megabytes 1000] [--pairs 3] [--conversations 100000] [--varied 20]

`json`: records parsed and visited, ours on all cores against json.load, which is one thread; counts of
records, messages and text bytes must agree. `preprocess`: file to labelled rows in a new token cache against
json.load and fastchat.train.train.preprocess; ids and labels must agree; `varied` is the same for a file of
that many megabytes, the recorded conversations again and again with new words in them. `second start`: the
same call when the cache is there. `rss`: peak memory of a process that labels the large file into a cache,
pages of mapped files included.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import numpy as np

from fastsft import _C
from fastsft.data import make_supervised_data_module
from fastsft.tokenizer import Tokenizer
from golden_text import GOLDEN, conversation_file, hf_tokenizer
from harness import Run, UnequalResultsError, paired, write_result

MODE = "llama2_nonlegacy"


def write_large_file(path: Path, megabytes: float) -> int:
    """A ShareGPT array of about that size from the recorded conversations; returns the number of records."""
    records = json.loads(conversation_file("sharegpt_multi_turn").read_text("utf-8"))
    chooser, size, count = random.Random(0), 0, 0
    with path.open("w", encoding="utf-8") as file:
        file.write("[")
        while size < megabytes * 1e6:
            text = json.dumps({**chooser.choice(records), "id": f"r{count}"}, ensure_ascii=False)
            file.write(f"{',' if count else ''}\n{text}")
            size, count = size + len(text), count + 1
        file.write("\n]\n")
    return count


def write_varied_file(path: Path, megabytes: float) -> None:
    """The recorded conversations over and over; of the words, one in fifty has its letters in new order."""
    records = json.loads(conversation_file("sharegpt_multi_turn").read_text("utf-8"))
    chooser, varied, size = random.Random(0), [], 0
    while size < megabytes * 1e6:
        record = chooser.choice(records)
        messages = [{**m, "value": _vary(m["value"], chooser)} for m in record["conversations"]]
        varied.append({**record, "id": f"r{len(varied)}", "conversations": messages})
        size += sum(len(message["value"]) for message in messages)
    path.write_text(json.dumps(varied, ensure_ascii=False), "utf-8")


def _vary(text: str, chooser: random.Random) -> str:
    words = text.split(" ")
    for i in range(len(words)):
        if chooser.random() < 0.02 and words[i].isalpha():
            words[i] = "".join(chooser.sample(words[i], len(words[i])))
    return " ".join(words)


def count_with_json(path: Path) -> Run:
    start = time.perf_counter()
    with path.open(encoding="utf-8") as file:
        records = json.load(file)
    seconds = time.perf_counter() - start
    texts = [message["value"] for record in records for message in record["conversations"]]
    return Run({"seconds": seconds}, (len(records), len(texts), sum(len(text.encode()) for text in texts)))


def count_with_ours(path: Path, num_threads: int) -> Run:
    start, cpu = time.perf_counter(), time.process_time()
    counts = _C.count_data([_C.DataInput(path.name, str(path))], num_threads)
    seconds, used = time.perf_counter() - start, time.process_time() - cpu
    print(f"  {path.stat().st_size / 1e6 / used:.0f} MB a second of CPU time")
    return Run({"seconds": seconds}, (counts.num_records, counts.num_messages, counts.num_text_bytes))


def run_fastchat(path: Path, tokenizer: Any) -> Run:
    from fastchat.train import train

    start = time.perf_counter()
    records = json.loads(path.read_text("utf-8"))
    out = train.preprocess([record["conversations"] for record in records], tokenizer)
    seconds = time.perf_counter() - start
    return Run({"seconds": seconds}, (out["input_ids"].numpy(), out["labels"].numpy()))


def load(path: Path, cache: Path, length: int) -> tuple[float, Any]:
    tokenizer = Tokenizer.from_pretrained(GOLDEN / "tokenizers" / MODE, model_max_length=length)
    arguments = SimpleNamespace(
        data_path=str(path),
        eval_data_path=None,
        lazy_preprocess=False,
        data_cache=str(cache),
        max_dropped=1.0,
    )
    start = time.perf_counter()
    dataset = make_supervised_data_module(tokenizer, arguments)["train_dataset"]
    return time.perf_counter() - start, dataset


def run_ours(path: Path, length: int) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        seconds, dataset = load(path, Path(folder), length)
        return Run({"seconds": seconds}, (dataset.input_ids.numpy(), dataset.labels.numpy()))


def check_counts(baseline: Any, ours: Any) -> None:
    if baseline != ours:
        raise UnequalResultsError(f"counts differ: {baseline} and {ours}")


def check_rows(baseline: Any, ours: Any) -> None:
    for name, a, b in zip(("ids", "labels"), baseline, ours, strict=True):
        if not np.array_equal(a, b):
            raise UnequalResultsError(f"{name} differ in {(a != b).any(axis=1).sum()} rows")


def second_start(folder: Path, conversations: int, length: int) -> dict[str, float]:
    large = folder / "many.json"
    megabytes = 1.0
    count = 0
    while count < conversations:  # the recorded conversations are of very different lengths
        count = write_large_file(large, megabytes)
        megabytes *= max(1.1, 1.02 * conversations / count)
    first, _ = load(large, folder / "cache", length)
    time.sleep(2.5)  # a file that changed this second is read again
    load(large, folder / "cache", length)
    seconds = [load(large, folder / "cache", length)[0] for _ in range(3)]
    return {"conversations": count, "first_seconds": first, "second_seconds": sorted(seconds)[1]}


def peak_memory(path: Path, folder: Path, length: int) -> float:
    """Bytes, of a process of its own."""
    program = (
        f"import bench_data, pathlib; bench_data.load_and_tell({str(path)!r}, {str(folder)!r}, {length})"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    return float(output.stdout.split()[-1])


def resident_memory(name: str) -> int:
    """Bytes: VmRSS now, VmHWM at most, of this program alone (ru_maxrss begins with its parent's)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024


def load_and_tell(path: str, folder: str, length: int) -> None:
    before = resident_memory("VmRSS")
    load(Path(path), Path(folder), length)
    print(resident_memory("VmHWM") - before)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=float, default=1000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--conversations", type=int, default=100_000)
    parser.add_argument("--varied", type=float, default=20, help="megabytes")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    theirs = hf_tokenizer(MODE, options.length)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        large = folder / "large.json"
        write_large_file(large, options.megabytes)
        results = {
            "json": paired(
                lambda: count_with_json(large),
                lambda: count_with_ours(large, options.threads),
                pairs=options.pairs,
                check=check_counts,
            )["seconds"]
        }
        speed = large.stat().st_size / 1e6 / results["json"].ours
        memory = peak_memory(large, folder / "memory", options.length)
        start = second_start(folder, options.conversations, options.length)
        sources = {name: conversation_file(name) for name in ("sharegpt_multi_turn", "sharegpt_single_turn")}
        sources["varied"] = folder / "varied.json"
        write_varied_file(sources["varied"], options.varied)
        for source, path in sources.items():
            results[f"preprocess {source}"] = paired(
                lambda path=path: run_fastchat(path, theirs),
                lambda path=path: run_ours(path, options.length),
                pairs=options.pairs,
                check=check_rows,
            )["seconds"]
    numbers = {**vars(options), "json_mb_per_second": speed, "peak_bytes": memory, **start}
    write_result("bench_data", results, numbers)
    for name, ratio in results.items():
        print(f"{name:<40}{1 / ratio.median:8.1f} x the baseline")
    print(f"JSON to records: {speed:.0f} MB/s; memory of {options.megabytes:.0f} MB: {memory / 1e6:.0f} MB")
    first, second = start["first_seconds"], start["second_seconds"]
    print(f"{start['conversations']} conversations: first start {first:.2f} s, second {second:.3f} s")


if __name__ == "__main__":
    main()
