"""Recorder of FastChat's labels with all ids: hand-made edge cases, and ten conversations of three files."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from fastchat_labels import MODES, labelled
from recording import Recorder, each_file, write_json_lines

from golden_text import CONVERSATIONS

# File, model_max_length, number of conversations.
FILES = [("edge_cases", 64, None), ("edge_cases", 512, None), *((name, 512, 10) for name in CONVERSATIONS)]


def write(name: str, mode: str, length: int, first: int | None, path: Path) -> None:
    write_json_lines(path, list(labelled(name, mode, length, first)))


RECORDER = Recorder(
    libraries={"fschat": "0.2.36", "transformers": "4.57.6", "sentencepiece": "0.2.3"},
    parts=each_file(
        {
            f"{name}.{mode}.{length}.jsonl.gz": partial(write, name, mode, length, first)
            for name, length, first in FILES
            for mode in MODES
        }
    ),
)
