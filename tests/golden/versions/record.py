"""Recorder of the rotations that transformers 5 reads of configurations in the words of both releases.

`tests/support/version_words.py` has the cases. Some readings are of files that fastsft makes of the older
words: a change of those files asks for a new recording.
"""

from __future__ import annotations

import json
from pathlib import Path

from recording import Recorder, each_file


def write(path: Path) -> None:
    from version_words import record

    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in record().items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


RECORDER = Recorder(libraries={"transformers": "5.24.0"}, parts=each_file({"words.json": write}), apart=1e-5)
