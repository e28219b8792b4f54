"""Run a tokenizer.json in the library tokenizers, as a separate program with time and memory limits.

The file is untrusted: a regular expression may run without end, and normalizers may double a text thirty
times. The program imports only tokenizers and the standard library. `tokenizer/library_tokenizer.py` sends
the requests.

A request is a letter, a size (8 bytes), and a payload of that many bytes. An answer has the same form, with
the letter + for a result and - for an error message.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import struct
import sys
from array import array
from collections.abc import Iterator
from types import ModuleType
from typing import Any

MEMORY_LIMIT = 1 << 30
# Limits of processor time: for loading the file, and for a text (TEXT_SECONDS + bytes / BYTES_A_SECOND).
LOAD_SECONDS, TEXT_SECONDS, BYTES_A_SECOND = 10.0, 5.0, 50_000
HEAD = struct.Struct("<cQ")


def main() -> None:
    """Answer requests until standard input ends."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    library: Library | None = None
    while len(head := sys.stdin.buffer.read(HEAD.size)) == HEAD.size:
        kind, size = HEAD.unpack(head)
        payload = sys.stdin.buffer.read(size)
        try:
            if kind == b"L":
                with _limited(LOAD_SECONDS):
                    library = Library(json.loads(payload))
                    answer = json.dumps(library.hello).encode()
            else:
                assert library is not None
                with _limited(TEXT_SECONDS + size / BYTES_A_SECOND):
                    answer = library.answer(kind, payload)
            _send(b"+", answer)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the library, in Rust, is not derived from Exception
            _send(
                b"-", (" ".join(str(error).split())[:300] or type(error).__name__).encode("utf-8", "replace")
            )


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Let a signal end the process after `seconds` of processor time, even inside the library."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _send(status: bytes, payload: bytes) -> None:
    try:
        sys.stdout.buffer.write(HEAD.pack(status, len(payload)) + payload)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os._exit(1)  # the parent process has ended; a normal exit would flush again and fail


class Library:
    """A tokenizer in the library tokenizers. hello: its properties, which are sent once after loading."""

    def __init__(self, job: dict[str, Any]) -> None:
        import tokenizers

        self._tokenizer = tokenizers.Tokenizer.from_str(job["text"])
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._add_tokens(tokenizers, job["added"])
        self._vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        added = self._tokenizer.get_added_tokens_decoder()
        self.hello = {
            "vocabulary": self._vocabulary,
            "special_ids": sorted(added),
            "control_ids": sorted(number for number, token in added.items() if token.special),
            "around": self._around(),
        }

    def _add_tokens(self, tokenizers: ModuleType, added: list[dict[str, Any]]) -> None:
        in_file = {token.content for token in self._tokenizer.get_added_tokens_decoder().values()}
        texts, chosen = set(in_file), []
        for given in added:
            text = given["token"]["content"]
            if text not in texts or given["replaces_file" if text in in_file else "replaces_other"]:
                chosen.append(tokenizers.AddedToken(**given["token"]))
                texts.add(text)
        self._tokenizer.add_tokens(chosen)

    def _around(self) -> tuple[list[int], list[int]]:
        """Return the ids that the tokenizer adds before a text, and the ids that it adds after the text."""
        encoding = self._tokenizer.encode("a")
        places = [number for number, part in enumerate(encoding.sequence_ids) if part is not None]
        first, last = (places[0], places[-1]) if places else (len(encoding.ids), len(encoding.ids))
        return encoding.ids[:first], encoding.ids[last + 1 :]

    def answer(self, kind: bytes, payload: bytes) -> bytes:
        """Return the answer to a request.

        kind: E encodes a text, P encodes a text and treats special tokens in it as plain text, D decodes ids,
        S decodes ids and skips special tokens.
        """
        if kind in (b"D", b"S"):
            text: str = self._tokenizer.decode(array("I", payload).tolist(), skip_special_tokens=kind == b"S")
            return text.encode("utf-8", "surrogatepass")
        return self._encode(payload.decode(), kind == b"P")

    def _encode(self, data: str, as_plain: bool) -> bytes:
        """Return id, begin byte and end byte of each token, as unsigned 32-bit numbers."""
        self._tokenizer.encode_special_tokens = as_plain
        encoding = self._tokenizer.encode(data, add_special_tokens=False)
        bytes_before = [0]
        for char in data:
            bytes_before.append(bytes_before[-1] + len(char.encode()))
        flat = array("I")
        for token_id, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
            flat.extend((token_id, bytes_before[begin], bytes_before[end]))
        return flat.tobytes()


if __name__ == "__main__":
    main()
