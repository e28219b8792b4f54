"""Writes data_report.json next to the model, and prints sample rows with marks around their targets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft import _C
from fastsft.data.chat.labelling import CALL_STOP
from fastsft.data.chat.template_check import warn_of_stop
from fastsft.data.item_rows import append_item
from fastsft.model.config import read_generation_config
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import tell, warn_once
from fastsft.runtime.output_files import write_output
from fastsft.tokenizer.transformers_tokenizer import find_native_tokenizer

if TYPE_CHECKING:
    from fastsft.arguments import DataArguments
    from fastsft.model.causal_lm import CausalLM

REPORT_NAME = "data_report.json"
_BEGIN, _END = "\u27e6", "\u27e7"


_STOPS = ("stop_token", CALL_STOP)
_STOP_TOKENS = "stop_token_ids"  # attribute of the tokenizer that model/config.py reads


def write_data_report(directory: str | Path, data_module: dict[str, Any]) -> Path:
    """Write data_report.json and return its path.

    The file has counts for `train` and `eval`, and how their labels were made. data_module: from
    make_supervised_data_module, or a script's own. For a data set that fastsft did not label, only its class
    and number of rows are written. With --eval_split, each part has its own counts, and those of the whole
    file as `whole_file`. See docs/spec/fastchat_labels.md, section 4.1.
    """
    content = {
        name: _described(dataset)
        for name in ("train", "eval")
        if (dataset := data_module.get(f"{name}_dataset")) is not None
    }
    path = Path(directory) / REPORT_NAME
    write_output(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return path


def _described(dataset: object) -> dict[str, Any]:
    to_json = getattr(getattr(dataset, "report", None), "to_json", None)
    if to_json is not None:
        labelling = getattr(dataset, "labelling", None) or {}
        split = getattr(dataset, "eval_split", None)
        report = json.loads(to_json())
        return {**labelling, **(report if split is None else _part(dataset, split, report))}
    if isinstance(dataset, Mapping):
        return {str(name): _described(item) for name, item in dataset.items()}
    kind = type(dataset)
    rows = len(dataset) if hasattr(dataset, "__len__") else None
    return {"dataset": f"{kind.__module__}.{kind.__qualname__}", "rows": rows}


def _part(dataset: object, split: Mapping[str, Any], report: dict[str, Any]) -> dict[str, Any]:
    """Return the entry for a part of --eval_split: its own counts, and the whole file's `report`."""
    native: Any = getattr(dataset, "native", None)
    return {
        "eval_split": dict(split),
        "records": len(native),
        "tokens": int(native.lengths().sum()),
        "learned_tokens": int(native.label_counts().sum()),
        "whole_file": report,
    }


def show_data(
    model: CausalLM, tokenizer: object, data_args: DataArguments, directory: str, data_module: dict[str, Any]
) -> None:
    """Write data_report.json and print `dump_masked` samples on rank 0; warn if generation would not stop.

    The stop token is also added to the saved model's eos_token_id (docs/spec/fastchat_labels.md, section 4.4
    (f)).
    """
    dataset = data_module.get("train_dataset", ())
    note_stop_token(model, tokenizer, getattr(dataset, "labelling", None) or {})
    if launch().rank != 0:
        return
    path = write_data_report(directory, data_module)
    for sample in masked_samples(dataset, tokenizer, data_args.dump_masked):
        tell(sample)
    if data_args.check_data:
        tell(f"--check_data: the report is in {path}; no weights were loaded")


def note_stop_token(model: CausalLM, tokenizer: object, labelling: dict[str, str]) -> None:
    """Warn if the model's eos_token_id lacks stop tokens of the labels; the saved model will have them."""
    native = getattr(tokenizer, "native", None)
    if native is None or "stop_token" not in labelling:
        return  # the script made the labels
    stops = {native.find_token(labelling[name]): labelling[name] for name in _STOPS if name in labelling}
    config = read_generation_config(model.source_directory) or model.config
    configured = config.get("eos_token_id")
    ids = configured if isinstance(configured, list) else [configured] if isinstance(configured, int) else []
    messages = {stop: warn_of_stop(stop, ids, text) for stop, text in stops.items() if stop >= 0}
    missing = [stop for stop, message in messages.items() if message]
    if missing:
        setattr(tokenizer, _STOP_TOKENS, missing)
    for stop in missing:
        warn_once(f"{messages[stop]}; the saved model has it")


def masked_samples(dataset: Sequence[Mapping[str, Any]], tokenizer: object, count: int) -> Iterator[str]:
    """Yield the first `count` rows as text, with marks around targets and with control characters escaped.

    ValueError if a script's own tokenizer has no native equivalent.
    """
    if count < 1:
        return
    rows, native = _native_rows(dataset, count), find_native_tokenizer(tokenizer)
    if native is None:
        raise ValueError(
            f"--dump_masked: {type(tokenizer).__name__} has no native equal in fastsft; leave the flag out"
        )
    for row in range(min(count, len(rows))):
        ids = rows.ids(row).tolist()
        edges = [edge for span in rows.learned(row) for edge in span]
        parts = _texts_between(native, ids, [0, *edges, len(ids)])
        marked = "".join(f"{_BEGIN}{part}{_END}" if number % 2 else part for number, part in enumerate(parts))
        yield f"--- row {row}: {len(ids)} tokens, {sum(edges[1::2]) - sum(edges[::2])} learned\n{marked}"


def _native_rows(dataset: Sequence[Mapping[str, Any]], count: int) -> _C.TokenDataset:
    """Return the native rows of the data set; for a script's own data set, make them from `count` items."""
    native: _C.TokenDataset | None = getattr(dataset, "native", None)
    if native is not None:
        return native
    rows = _C.TokenDataset()
    for row in range(min(count, len(dataset))):
        append_item(rows, dataset[row], row)
    return rows


def _texts_between(native: _C.Tokenizer, ids: list[int], edges: list[int]) -> Iterator[str]:
    """Yield the text between each edge and the next edge.

    A letter is decoded before the ids, because decoding drops a space at the beginning.
    """
    letter = native.encode("a")
    before = native.decode(letter)
    for begin, end in pairwise(edges):
        text = native.decode([*letter, *ids[begin:end]])
        text = text[text.index(before) + len(before) :]
        yield "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text)
