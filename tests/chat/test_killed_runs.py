"""Children of a run that was killed leave without a word in its log."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from fastsft.tokenizer.library_program import HEAD

SETTINGS = {
    "source": "{{ messages[0].content }}", "tokens": {}, "date": "2026-11-27", "adds_bos": False, "ends": [],
    "seconds": 5.0,
}  # fmt: skip
LINE = json.dumps(SETTINGS).encode() + b"\n"
TEMPLATES, TOKENIZERS = "fastsft.data.chat.rendering.main", "fastsft.tokenizer.library_program"
# What came through the pipe before the end.
SAID = {
    "nothing": (TEMPLATES, b""),
    "half of the settings": (TEMPLATES, LINE[:20]),
    "settings": (TEMPLATES, LINE),
    "half of a request": (TEMPLATES, LINE + b'["a'),
    "a job": (TOKENIZERS, HEAD.pack(b"L", 2) + b"{}"),
    "half of a head": (TOKENIZERS, b"L"),
    "half of a job": (TOKENIZERS, HEAD.pack(b"L", 20) + b"{}"),
}


@pytest.mark.parametrize("name", SAID)
def test_nobody_reads(name: str) -> None:
    module, said = SAID[name]
    child = subprocess.Popen(
        [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdin and child.stdout and child.stderr
    child.stdout.close()
    child.stdin.write(said)
    child.stdin.close()
    assert child.stderr.read() == b""
    assert child.wait() in (0, 1)
    child.stderr.close()
