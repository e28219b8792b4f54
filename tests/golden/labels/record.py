"""Recorder of FastChat's labels for each conversation of three files: length, number of labels, hash."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from fastchat_labels import MODES, compact, labelled
from recording import Recorder, each_file, write_json_lines

from golden_text import CONVERSATIONS

LENGTHS = (128, 512, 2048)


def write(name: str, mode: str, length: int, path: Path) -> None:
    write_json_lines(path, [compact(row) for row in labelled(name, mode, length)])


RECORDER = Recorder(
    libraries={"fschat": "0.2.36", "transformers": "4.57.6", "sentencepiece": "0.2.3"},
    parts=each_file(
        {
            f"{name}.{mode}.{length}.jsonl.gz": partial(write, name, mode, length)
            for name in CONVERSATIONS
            for mode in MODES
            for length in LENGTHS
        }
    ),
)
