"""Writes python/fastsft/_C.pyi from the docstrings of the built extension.

usage: PYTHONPATH=python python scripts/make_stub.py        (after a build; needs the extra [lint])
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

STUB = Path(__file__).parents[1] / "python" / "fastsft" / "_C.pyi"


def generate() -> str:
    """The stub's text. Raises subprocess.CalledProcessError when a signature cannot be expressed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pybind11_stubgen", "fastsft._C", "--exit-code", "-o", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        text = (Path(folder) / "fastsft" / "_C.pyi").read_text()
    text = re.sub(r"collections\.abc\.Sequence(?!\[)", "collections.abc.Sequence[typing.Any]", text)
    text = re.sub(r"collections\.abc\.Callable(?!\[)", "collections.abc.Callable[..., typing.Any]", text)
    # Their UTF-8 is taken as well, of who has looked for lone surrogates already.
    text = re.sub(r"(def encode(?:_batch|_with_offsets)?\(self, texts?: )(str|.*?\[str\])(?=,)", either, text)
    # Values such as the version of torch belong to one build, not to the interface.
    text = re.sub(r"^((?!__all__)\w+: \w+) = .*$", r"\1", text, flags=re.M)
    # Of a class with == alone, which the checker of types takes for a mistake.
    text = text.replace("[None] = None", "[None] = None  # type: ignore[assignment]")
    return ruff("format", ruff("check", text, "--fix-only", "--quiet"))


def either(text: re.Match[str]) -> str:
    """A text or bytes, in the place of a text."""
    return text[1] + text[2].replace("str", "str | bytes")


def ruff(command: str, text: str, *options: str) -> str:
    """`text` after `ruff <command>`, with the project's settings."""
    words = [sys.executable, "-m", "ruff", command, *options, "--stdin-filename", str(STUB), "-"]
    return subprocess.run(words, check=True, input=text, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    STUB.write_text(generate())
    print(f"wrote {STUB}")
