"""Run tokenizers without a native equivalent in a worker process, with the library tokenizers."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import threading
from array import array
from collections.abc import Sequence
from typing import Any

from fastsft import _C
from fastsft.runtime.worker import Deadline, Worker
from fastsft.tokenizer.library_program import BYTES_A_SECOND, HEAD, LOAD_SECONDS, MEMORY_LIMIT, TEXT_SECONDS
from fastsft.tokenizer.settings import TokenizerSettings

_MAX_PATTERN = 10_000
_MAX_GROWTH = 256  # most characters into which a file's replacements may turn a single character
_REPEAT = re.compile(r"[*+]|\{\d*,\d*\}")


def library_tokenizer(
    text: str, settings: TokenizerSettings, where: str = "tokenizer.json"
) -> _C.LibraryTokenizer:
    """Return an object that runs a tokenizer.json in the library, with the interface of native tokenizers.

    text: the content of the tokenizer.json. where: its name for messages. The library runs in a process with
    time and memory limits. Its byte ranges of tokens are extended to cover the whole text. ValueError if the
    library refuses the file, if a regular expression may take exponential time, or if the tokenizer adds
    tokens other than BOS and EOS to texts. The returned object raises ValueError if the library cannot encode
    a text within the limits.
    """
    content = json.loads(text)
    check_patterns(content)
    check_growth(content)
    _check_dropout(content)
    added = [_given(token) for token in settings.added]
    process = LibraryProcess({"text": _with_prefix_space(content, settings), "added": added}, where)
    vocabulary: dict[str, int] = process.hello["vocabulary"]
    texts = {token_id: token for token, token_id in vocabulary.items()}
    calls = _C.LibraryCalls()
    calls.encode = process.encode
    calls.decode = process.decode
    calls.token_text = lambda token_id: texts.get(token_id, "")
    calls.find_token = lambda token: vocabulary.get(token, -1)
    calls.special_ids = set(process.hello["special_ids"])
    calls.control_ids = set(process.hello["control_ids"])
    calls.vocab_size = max(vocabulary.values(), default=-1) + 1
    calls.legacy = settings.legacy
    ids = {name: vocabulary.get(token, -1) for name, token in settings.named.items()}
    named = _C.NamedIds(*(ids.get(f"{name}_token", -1) for name in ("bos", "eos", "unk", "pad")))
    if settings.adds_bos is None:
        before, after = process.hello["around"]
        calls.adds_bos, calls.adds_eos = _around(before, after, named)
    else:
        calls.adds_bos, calls.adds_eos = settings.adds_bos, bool(settings.adds_eos)
    calls.named = named
    return _C.LibraryTokenizer(calls)


def check_patterns(section: object) -> None:
    """Raise ValueError if a regular expression in the file may take exponential time.

    section: the file's JSON content, or a part of it.
    """
    values = section.values() if isinstance(section, dict) else section if isinstance(section, list) else ()
    for value in values:
        if isinstance(value, (dict, list)):
            check_patterns(value)
    pattern = section.get("Regex") if isinstance(section, dict) else None
    if not isinstance(pattern, str):
        return
    if len(pattern) > _MAX_PATTERN:
        raise ValueError(f"tokenizer.json: a pattern of {len(pattern)} characters, at most {_MAX_PATTERN}")
    if _repeats_a_repeat(pattern):
        raise ValueError(
            f"tokenizer.json: the pattern {pattern[:200]!r} repeats a repeated group; it may never end"
        )


def check_growth(content: object) -> None:
    """Raise ValueError if the file's replacements together could make a text too long.

    Thirty replacements that each double a text would fill any memory. content: the file's JSON content.
    """
    for name in ("normalizer", "decoder"):
        growth = _growth(content.get(name) if isinstance(content, dict) else None)
        if growth > _MAX_GROWTH:
            raise ValueError(
                f"tokenizer.json: {name}: its replacements make {growth:.3g} characters of one, at most "
                f"{_MAX_GROWTH} are allowed"
            )


def _growth(section: object) -> float:
    if isinstance(section, list):
        return math.prod(map(_growth, section))
    if not isinstance(section, dict):
        return 1.0
    inside = math.prod(_growth(section.get(name)) for name in ("normalizers", "decoders"))
    pattern, text = section.get("pattern"), section.get("content")
    if section.get("type") != "Replace" or not isinstance(pattern, dict) or not isinstance(text, str):
        return inside
    replaced = pattern.get("String")
    # A regular expression may also match the empty text between any two characters.
    once = len(text) / len(replaced) if isinstance(replaced, str) and replaced else len(text) + 1.0
    return inside * max(1.0, once)


def _repeats_a_repeat(pattern: str) -> bool:
    """True if a repeated group contains a repetition: its run time can double with each character."""
    open_groups = [False]  # True, for each open group, if the group contains a repetition
    at = 0
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 2
            continue
        if pattern[at] == "[":
            at = _end_of_class(pattern, at)
            continue
        if pattern[at] == "(":
            open_groups.append(False)
            at += 2 if pattern.startswith("(?", at) else 1
            continue
        repeat = _REPEAT.match(pattern, at + 1 if pattern[at] == ")" else at)
        if pattern[at] == ")" and len(open_groups) > 1:
            inside = open_groups.pop()
            if inside and repeat:
                return True
            open_groups[-1] |= inside
        elif repeat:
            open_groups[-1] = True
        at += 1
    return False


def _end_of_class(pattern: str, at: int) -> int:
    """Return the position after the "]" of the character class that begins at `at`. Classes may be nested."""
    depth = 0
    while at < len(pattern):
        depth += (pattern[at] == "[") - (pattern[at] == "]")
        at += 2 if pattern[at] == "\\" else 1
        if depth == 0:
            break
    return at


def _check_dropout(content: object) -> None:
    model = content.get("model") if isinstance(content, dict) else None
    dropout = model.get("dropout") if isinstance(model, dict) else None
    if dropout:
        raise ValueError(
            f"tokenizer.json: model.dropout is {dropout}: a text would have other ids each time and on each "
            "rank; set it to null"
        )


def _with_prefix_space(content: object, settings: TokenizerSettings) -> str:
    """Return the content as JSON, with ByteLevel's add_prefix_space set as in tokenizer_config.json."""
    section = content.get("pre_tokenizer") if isinstance(content, dict) else None
    if isinstance(section, dict) and section.get("type") == "ByteLevel":
        given = settings.add_prefix_space
        section["add_prefix_space"] = section.get("add_prefix_space", True) if given is None else given
    return json.dumps(content)


def _given(given: _C.GivenToken) -> dict[str, object]:
    token = given.token
    return {
        "token": {
            "content": token.text,
            "lstrip": token.strips_left,
            "rstrip": token.strips_right,
            "single_word": token.single_word,
            "normalized": token.normalized,
            "special": token.special,
        },
        "replaces_file": given.replaces_file,
        "replaces_other": given.replaces_other,
    }


def _around(before: list[int], after: list[int], named: _C.NamedIds) -> tuple[bool, bool]:
    """Return (True if BOS is added before a text, True if EOS is added after a text).

    before, after: the ids that the library adds to a text. If BOS or EOS is unknown in `named`, it is set
    there. ValueError if the library adds other ids.
    """
    if len(before) == 1 and named.bos < 0:
        named.bos = before[0]
    if len(after) == 1 and named.eos < 0:
        named.eos = after[0]
    if before in ([], [named.bos]) and after in ([], [named.eos]):
        return bool(before), bool(after)
    raise ValueError(
        f"tokenizer.json: it puts the ids {before} in front of a text and {after} after it, more than "
        "bos_token and eos_token"
    )


# The process counts as stuck after this many seconds of wall-clock time plus four times the limit of
# processor time.
_PATIENCE = 20.0


class LibraryProcess:
    """A tokenizer in a process of its own, which is started again after a fork or if it has ended.

    job: the file's text and the tokens to add (`library_program.Library`). where: begins error messages.
    Thread-safe: requests are answered one after the other. ValueError if the library refuses a text or does
    not finish it in time.
    """

    def __init__(self, job: dict[str, Any], where: str) -> None:
        self._job, self._where = json.dumps(job).encode(), where
        self._worker: Worker | None = None
        self._owner, self._lock = os.getpid(), threading.Lock()
        self.hello: dict[str, Any] = {}
        with self._lock:
            self._start()

    def encode(self, text: str, as_plain: bool) -> list[tuple[int, int, int]]:
        """Return (id, begin byte, end byte) of each token.

        as_plain: treat special tokens in the text as plain text.
        """
        flat = array("I", self._ask(b"P" if as_plain else b"E", text.encode()))
        return list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Return the text of `ids`."""
        answer = self._ask(b"S" if skip_special_tokens else b"D", array("I", ids).tobytes())
        return answer.decode("utf-8", "surrogatepass")

    def close(self) -> None:
        """End the process; a later request starts a new process."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def _ask(self, kind: bytes, payload: bytes) -> bytes:
        if self._owner != os.getpid():  # after a fork, the worker belongs to the parent process
            self._owner, self._lock, self._worker = os.getpid(), threading.Lock(), None
        with self._lock:
            worker = self._worker or self._start()
            return self._exchange(worker, kind, payload, TEXT_SECONDS + len(payload) / BYTES_A_SECOND)

    def _start(self) -> Worker:
        variables = {"TOKENIZERS_PARALLELISM": "false", "MALLOC_ARENA_MAX": "2"}
        self._worker = Worker(
            "fastsft.tokenizer.library_program", ("tokenizers",), variables, stderr=subprocess.DEVNULL
        )
        self.hello = json.loads(self._exchange(self._worker, b"L", self._job, LOAD_SECONDS))
        return self._worker

    def _exchange(self, worker: Worker, kind: bytes, payload: bytes, seconds: float) -> bytes:
        deadline = Deadline(worker.process, math.inf, 4 * seconds + _PATIENCE)
        try:
            worker.send(HEAD.pack(kind, len(payload)) + payload)
            head = worker.receive(HEAD.size, deadline)
            status, size = HEAD.unpack(head) if len(head) == HEAD.size else (b"", 1)
            answer = worker.receive(size, deadline)
            ended = len(answer) < size
        except (OSError, TimeoutError):
            ended = True
        except BaseException:
            self.close()  # otherwise the next request would get the pending answer to this request
            raise
        if ended:
            raise ValueError(self._told(self._end_of(worker.process, seconds), kind, payload))
        if status != b"+":
            if kind == b"L":
                self.close()
            raise ValueError(self._told(f"refuses it: {answer.decode('utf-8', 'replace')}", kind, payload))
        return answer

    def _told(self, what: str, kind: bytes, payload: bytes) -> str:
        text = "" if kind == b"L" else f" [a text of {len(payload)} bytes]"
        way = "; copy or download it again, or try a newer tokenizers" if kind == b"L" else ""
        return f"{self._where}: the tokenizers library {what}{text}{way}"

    def _end_of(self, process: subprocess.Popen[bytes], seconds: float) -> str:
        try:
            status = process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            status = None
        self.close()
        if status is None or status == -signal.SIGPROF:
            return f"takes more than {seconds:g} s for it; such a pattern or normalizer may never end"
        return f"ended with status {status}, as with more than {MEMORY_LIMIT >> 20} MiB of memory"
