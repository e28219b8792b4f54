"""The model's own Jinja chat template as a template of the spans policy (`--template model`).

Rules: docs/spec/fastchat_labels.md, section 5.3. Templates run in processes of their own (`render.py`):
only a process can be stopped inside one endless operation and be kept from taking all memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fastsft.data.chat.jinja_form import without_bos
from fastsft.data.chat.rendering.marks import common_length
from fastsft.data.chat.rendering.probes import INPUTS
from fastsft.data.chat.rendering.reply_spans import Ends
from fastsft.runtime.isolated_python import isolated_command, isolated_environment
from fastsft.runtime.messages import tell
from fastsft.runtime.threads import denied, start_needed

if TYPE_CHECKING:
    from fastsft import _C

SECONDS = 10.0
_GRACE = 5.0
_SHORTEST_WAIT = 0.05
_LONGEST_WAIT = 20  # times as long on the clock as in seconds of a core
_MOST_WORKERS = 4
_SMALLEST_SHARE = 64
# What templates without system messages write, and the named ones that fold them into the first user's text.
_FOLDING = {"[INST]": "mistral", "<start_of_turn>": "gemma"}
_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")

Asked = tuple[str | None, list[tuple[str, str, bool, str]], str]
Rendered = tuple[list[tuple[str, bool, bool]], bool, bool, str, str, int, bool]


class ModelTemplate:
    """A Jinja chat template with the tokenizer that it is for; called with dialogues, it renders them.

    source: the template's text. tokenizer: fastsft's or a Hugging Face one; its named tokens are handed in.
    native: the native tokenizer. seconds: what one conversation may take of a core. day: the date that the
    template is told, in ISO form; None: today's. for_tools: it is for chats with tools only. `stop_token`:
    the text that ends replies, found by rendering; `call_stop_token`: what ends calls of tools, "" for the
    same or none.
    `reply_ending`: what comes after a reply's text, up to its end. ValueError for a template that does not
    compile, does what the sandbox forbids, or ends replies with no special token.
    """

    def __init__(
        self,
        source: str,
        tokenizer: object,
        native: _C.Tokenizer,
        *,
        seconds: float = SECONDS,
        day: str | None = None,
        for_tools: bool = False,
    ) -> None:
        adds_bos = bool(getattr(tokenizer, "add_bos_token", False))
        self.source = without_bos(source, adds_bos)
        # A day: what is labelled is found again in the token cache, and is the same on all ranks.
        self.date = _day(day)
        self.asks_for_date = "strftime_now" in source
        self._seconds = seconds
        named = {name: getattr(tokenizer, name, None) for name in _NAMED}
        self._tokens = {name: str(text) for name, text in named.items() if text}
        self._settings = {
            "source": self.source,
            "tokens": self._tokens,
            "date": self.date,
            "adds_bos": adds_bos,
            "ends": (),
            "seconds": seconds,
        }
        if for_tools:
            self._settings["for_tools"] = True
        self._workers: list[_Worker] = []
        self._killed = 0
        try:
            found = self._endings()
        finally:
            self.close()
        ends, self.reply_ending = find_ends(
            found, native, *(str(self._tokens.get(name, "")) for name in ("bos_token", "eos_token"))
        )
        self.stop_token = ends.reply
        self.call_stop_token = ends.call if ends.call != ends.reply else ""
        self._settings["ends"] = ends
        if found.rest_of_prompt:
            tell(
                f"chat template: its prompt for a reply ends with {found.rest_of_prompt!r}, and a reply "
                "without thoughts goes on otherwise: it is learned from where the two part"
            )
        if ends.next_turn:
            tell(f"chat template: it ends no reply; {ends.reply}, with which a user's message begins, does")
        if self.asks_for_date:
            tell(f"chat template: strftime_now gives {self.date}, also past midnight")

    @property
    def digest(self) -> str:
        """SHA-256 of all that the rendering depends on."""
        settings = {**self._settings, "seconds": None}
        if not self.asks_for_date:
            settings["date"] = None
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    def __call__(self, dialogues: Sequence[Asked]) -> list[Rendered]:
        """Texts of dialogues, in order.

        dialogues: system text, messages (role, text, whether it is learned, more fields as JSON), and tools
        as JSON. Returns pieces (text, is_data, is_learned), BOS in front or not, whether data is known, why
        it failed, the texts of the further fields, a learned message that is not written as it is, or -1, and
        whether it failed because its replies need rows of their own.
        """
        return [
            self._with_way_out(written) if written[3] and dialogue[0] is not None else written
            for dialogue, written in zip(dialogues, self._ask(dialogues), strict=True)
        ]

    def _with_way_out(self, written: Rendered) -> Rendered:
        """For a system text that the template does not write: a named template that does."""
        if self._takes_system:
            return written
        folding = next((name for mark, name in _FOLDING.items() if mark in self.source), None)
        way = (
            f"training with --template {folding} writes it before the first user's text"
            if folding
            else "name a template that does (--template), or leave system messages out"
        )
        pieces, bos, known, failure, more, rewritten, needs_rows = written
        failure += f"; it writes no system message in front of a reply: {way}"
        return pieces, bos, known, failure, more, rewritten, needs_rows

    @cached_property
    def _takes_system(self) -> bool:
        return self._trait("takes_system")

    def prompts(self, dialogues: Sequence[Asked]) -> list[Rendered]:
        """The texts before the last messages, which are replies not written yet: what the model reads.

        With `add_generation_prompt`, or up to the reply with a template that ignores it. All counts as
        learned.
        """
        return self._ask([{"prompt": dialogue} for dialogue in dialogues])

    def _ask(self, requests: Sequence[Asked | dict[str, Asked]]) -> list[Rendered]:
        if not requests:
            return []
        count = min(_MOST_WORKERS, os.cpu_count() or 1, -(-len(requests) // _SMALLEST_SHARE))
        while len(self._workers) < count:
            self._workers.append(_Worker(self._settings, self._seconds))
        size = -(-len(requests) // count)
        shares = [requests[at : at + size] for at in range(0, len(requests), size)]
        with ThreadPoolExecutor(len(shares)) as pool:
            try:
                answers = pool.map(_Worker.ask_all, self._workers, shares)
            except RuntimeError as error:
                raise denied("rendering the chat template", error) from error
            return [self._checked(answer) for share in answers for answer in share]

    @cached_property
    def rewrites(self) -> bool:
        """True if it writes a reply otherwise once more messages follow, as Qwen3's does."""
        return self._trait("rewrites")

    @cached_property
    def rewrites_thoughts(self) -> bool:
        """True if it does so with replies that have thoughts."""
        return self._trait("rewrites_thoughts")

    @cached_property
    def lacks_bos(self) -> bool:
        """True if it writes no BOS where the tokenizer puts one in front of a text."""
        return self._trait("lacks_bos")

    @property
    def first_text(self) -> str:
        """The text of a short conversation."""
        (written,) = self([(None, [("user", "Hi", False, ""), ("assistant", "Ho", True, "")], "")])
        return "".join(text for text, _, _ in written[0])

    @cached_property
    def marks_replies(self) -> bool:
        """True if it says where replies begin: what it writes before a reply's text is generated, too."""
        return self._trait("marks_replies")

    @cached_property
    def fields(self) -> list[str]:
        """Those of "tools", "tool_calls" and "reasoning_content" that it writes, and its INPUTS."""
        names = ("tools", "tool_calls", "reasoning_content", *INPUTS)
        return [name for name in names if self._trait(name)]

    def _trait(self, name: str) -> bool:
        """Found by rendering; False with a line where that fails."""
        if not self._workers:
            self._workers.append(_Worker(self._settings, self._seconds))
        (answer,) = self._workers[0].ask_all([name])
        if "trait" not in answer:
            tell(f"chat template: no probe of {name}: {answer.get('fatal') or answer['failure']}")
        return bool(answer.get("trait"))

    def close(self) -> None:
        """End the rendering processes; a later call starts new ones."""
        for worker in self._workers:
            worker.close()
        self._workers = []

    def __del__(self) -> None:
        for worker in getattr(self, "_workers", []):
            worker.close()

    def _checked(self, answer: dict[str, Any]) -> Rendered:
        if "fatal" in answer:
            raise ValueError(answer["fatal"])
        self._killed += "killed" in answer
        if self._killed > 3:
            raise ValueError(f"{answer['failure']}, and so do others; use a named template (--template)")
        if "failure" in answer:
            return [], False, True, answer["failure"], "", -1, False
        pieces = [tuple(piece) for piece in answer["pieces"]]
        why = answer["needs_rows"]
        return pieces, answer["bos"], answer["known"], why, answer["more"], answer["rewritten"], bool(why)

    def _endings(self) -> Endings:
        worker = _Worker(self._settings, self._seconds)
        self._workers.append(worker)
        answer = worker.ask_all(["endings"])[0]
        if "endings" not in answer:
            raise ValueError(answer.get("fatal") or answer["failure"])
        return Endings(**answer["endings"])


def _day(given: str | None) -> str:
    try:
        return (date.today() if given is None else date.fromisoformat(given)).isoformat()
    except ValueError:
        raise ValueError(f"--template_date: expected a day such as 2026-11-26, got {given!r}") from None


class _Worker:
    """One rendering process, started again after it had to be killed."""

    def __init__(self, settings: dict[str, Any], seconds: float) -> None:
        self._settings = settings
        self._patience = seconds + _GRACE
        self._buffer = b""
        self._process: subprocess.Popen[bytes] | None = None

    def ask_all(self, requests: Sequence[Any]) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = []
        while len(answers) < len(requests):
            process = self._start()
            lines = "".join(json.dumps(request) + "\n" for request in requests[len(answers) :]).encode()
            writer = threading.Thread(target=_write, args=(process, lines), daemon=True)
            start_needed(writer, "rendering the chat template")
            while len(answers) < len(requests):
                answer = self._read(process)
                answers.append(answer)
                if "killed" in answer:
                    break
            writer.join()
        return answers

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is not None:
            return self._process
        self._buffer = b""
        self._process = subprocess.Popen(
            isolated_command("fastsft.data.chat.rendering.main", ("jinja2", "markupsafe")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=isolated_environment(),
        )
        _write(self._process, json.dumps(self._settings).encode() + b"\n")
        hello = self._read(self._process)
        if "fatal" in hello or "failure" in hello:
            self.close()
            raise ValueError(hello.get("fatal") or hello["failure"])
        return self._process

    def _read(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        assert process.stdout is not None
        while b"\n" not in self._buffer:
            ready = self._has_more(process)
            part = os.read(process.stdout.fileno(), 1 << 20) if ready else b""
            if not part:
                self.close()
                reason = f"takes more than {self._patience:g} s" if not ready else "ended its process"
                return {"failure": f"the chat template {reason}", "killed": True}
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _has_more(self, process: subprocess.Popen[bytes]) -> bool:
        """False once the process has computed for longer than it may; one that gets no core is waited for."""
        began, end = _cpu_seconds(process), time.monotonic() + _LONGEST_WAIT * self._patience
        assert process.stdout is not None
        left = self._patience  # it has one thread: nothing can be over before
        while not select.select([process.stdout], [], [], max(left, _SHORTEST_WAIT))[0]:
            left = self._patience - (_cpu_seconds(process) - began)
            if left <= 0 or time.monotonic() > end:
                return False
        return True


def _cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("inf")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _write(process: subprocess.Popen[bytes], lines: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(lines)
        process.stdin.flush()
    except (OSError, ValueError):
        return  # the process was killed: the reader says so


class Endings(NamedTuple):
    """The answer of `template_program.Program.endings`."""

    last: str
    middle: str
    call: str
    after_call: str
    rest_of_prompt: str


def find_ends(found: Endings, native: _C.Tokenizer, bos: str, eos: str) -> tuple[Ends, str]:
    """The tokens that end replies, and what comes after a reply's text up to the end of its stop token.

    native: the native tokenizer. bos, eos: its named tokens, "" for none. EOS is the stop token where every
    reply ends with it, else the first control token that ends every reply, else the first special token after
    the last reply. Where there is none, it is the one with which a user's message begins after a reply, but
    for BOS, and a tool's result after a call.
    ValueError where there is none either.
    """
    last = _specials(found.last, native)
    if last:
        shared = _specials(found.last[: common_length(found.last, found.middle)], native)
        controls = [token for token in shared if native.is_control(native.find_token(token))]
        stop = eos if eos in shared else (controls or last)[0]
        return Ends(stop, _call_stop(found.call, stop, native)), _up_to(found.last, stop)
    middle, after_call = (_specials(text, native) for text in (found.middle, found.after_call))
    if middle and middle[0] != bos and found.middle.lstrip().startswith(middle[0]):
        begins = bool(after_call) and found.after_call.lstrip().startswith(after_call[0])
        return Ends(middle[0], after_call[0] if begins else "", True), _up_to(found.middle, middle[0])
    raise ValueError(
        f"the chat template ends a reply with {found.last!r}, which holds no special token: a model trained "
        "with it would not stop; use a named template (--template)"
    )


def _call_stop(call: str, stop: str, native: _C.Tokenizer) -> str:
    """The end of a call: the stop token, else the control token with which its text ends, else ""."""
    specials = _specials(call, native)
    last = specials[-1] if specials else ""
    if stop in specials:
        return stop
    is_end = last and call.rstrip().endswith(last) and native.is_control(native.find_token(last))
    return last if is_end else ""


def _specials(text: str, native: _C.Tokenizer) -> list[str]:
    """The special tokens in a text, in order; none of white space."""
    data = text.encode()
    ids, offsets = native.encode_with_offsets(data)
    pairs = zip(ids, offsets, strict=True)
    found = (data[begin:end].decode().strip() for token, (begin, end) in pairs if native.is_special(token))
    return [text for text in found if text]


def _up_to(text: str, stop: str) -> str:
    return text[: text.index(stop) + len(stop)]
