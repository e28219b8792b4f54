"""The model's own Jinja chat template as a template of the spans policy (`--template model`).

Rules: docs/spec/fastchat_labels.md, section 5.3. Templates run in processes of their own
(`rendering/main.py`): only a process can be stopped inside an endless operation and be kept from taking all
memory.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from fastsft.data.chat.jinja_form import without_bos
from fastsft.data.chat.rendering.marks import common_length
from fastsft.data.chat.rendering.probes import INPUTS
from fastsft.data.chat.rendering.reply_spans import Ends
from fastsft.runtime.messages import tell
from fastsft.runtime.threads import denied
from fastsft.runtime.worker import Deadline, Worker

if TYPE_CHECKING:
    from fastsft import _C

SECONDS = 10.0
_GRACE = 5.0
_LONGEST_WAIT = 20  # times as long on the clock as in processor time
_MOST_WORKERS = 4
_SMALLEST_SHARE = 64
# Marks of templates without system messages, and named templates that put such text into the first user's.
_FOLDING = {"[INST]": "mistral", "<start_of_turn>": "gemma"}
_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")

Asked = tuple[str | None, list[tuple[str, str, bool, str]], str]
Rendered = tuple[list[tuple[str, bool, bool]], bool, bool, str, str, int, bool]


class ModelTemplate:
    """A Jinja chat template with its tokenizer; called with conversations, it renders them.

    source: the template's text. tokenizer: fastsft's or a Hugging Face one; the template gets its named
    tokens. native: the native tokenizer. seconds: processor time for a conversation. day: the date given to
    the template, in ISO form; None: today. for_tools: the template is only for chats with tools.
    `stop_token`: the text that ends replies, found by rendering; `call_stop_token`: ends tool calls, "" if it
    is the same or there is none. `reply_ending`: the text after a reply's content, up to its end. ValueError
    for a template that does not compile, does what the sandbox forbids, or ends replies with no special
    token.
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
        # A day, not a time: the token cache stays valid for the day, and all ranks have the same labels.
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
        self._renderers: list[_Renderer] = []
        self._killed = 0
        try:
            around = self._endings()
        finally:
            self.close()
        ends, self.reply_ending = find_ends(
            around, native, *(str(self._tokens.get(name, "")) for name in ("bos_token", "eos_token"))
        )
        self.stop_token = ends.reply
        self.call_stop_token = ends.call if ends.call != ends.reply else ""
        self._settings["ends"] = ends
        if around.rest_of_prompt:
            tell(
                f"chat template: its prompt for a reply ends with {around.rest_of_prompt!r}, and a reply "
                "without thoughts goes on otherwise: it is learned from where the two part"
            )
        if ends.next_turn:
            tell(f"chat template: it ends no reply; {ends.reply}, with which a user's message begins, does")
        if self.asks_for_date:
            tell(f"chat template: strftime_now gives {self.date}, also past midnight")

    @property
    def digest(self) -> str:
        """SHA-256 of everything on which the rendering depends."""
        settings = {**self._settings, "seconds": None}
        if not self.asks_for_date:
            settings["date"] = None
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    def __call__(self, dialogues: Sequence[Asked]) -> list[Rendered]:
        """Render conversations, in order.

        dialogues: system text, messages (role, text, is learned, more fields as JSON), and tools as JSON.
        Returns for each: pieces (text, is_data, is_learned), whether a BOS must be put in front, whether
        is_data is known, the failure, the texts of the further fields, the number of a learned message that
        is not written unchanged (or -1), and whether it failed because its replies need separate rows.
        """
        return [
            self._with_way_out(written) if written[3] and dialogue[0] is not None else written
            for dialogue, written in zip(dialogues, self._ask(dialogues), strict=True)
        ]

    def _with_way_out(self, written: Rendered) -> Rendered:
        """Add to the failure of a system text, if the template writes none, a named template that does."""
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
        """Render the prompts of the last messages, which are replies not written yet.

        With `add_generation_prompt`, or up to the reply for a template that ignores it. All counts as
        learned.
        """
        return self._ask([{"prompt": dialogue} for dialogue in dialogues])

    def _ask(self, requests: Sequence[Asked | dict[str, Asked]]) -> list[Rendered]:
        if not requests:
            return []
        count = min(_MOST_WORKERS, os.cpu_count() or 1, -(-len(requests) // _SMALLEST_SHARE))
        while len(self._renderers) < count:
            self._renderers.append(_Renderer(self._settings, self._seconds))
        size = -(-len(requests) // count)
        shares = [requests[at : at + size] for at in range(0, len(requests), size)]
        with ThreadPoolExecutor(len(shares)) as pool:
            try:
                answers = pool.map(_Renderer.ask_all, self._renderers, shares)
            except RuntimeError as error:
                raise denied("rendering the chat template", error) from error
            return [self._checked(answer) for share in answers for answer in share]

    @cached_property
    def rewrites(self) -> bool:
        """True if a reply changes once more messages follow, as in Qwen3's template."""
        return self._trait("rewrites")

    @cached_property
    def rewrites_thoughts(self) -> bool:
        """True if a reply with thoughts changes once more messages follow."""
        return self._trait("rewrites_thoughts")

    @cached_property
    def lacks_bos(self) -> bool:
        """True if the tokenizer puts a BOS before a text and the template writes none."""
        return self._trait("lacks_bos")

    @property
    def first_text(self) -> str:
        """Text of a short conversation."""
        (written,) = self([(None, [("user", "Hi", False, ""), ("assistant", "Ho", True, "")], "")])
        return "".join(text for text, _, _ in written[0])

    @cached_property
    def marks_replies(self) -> bool:
        """True if the template shows where replies begin, so that all text from there on is generated."""
        return self._trait("marks_replies")

    @cached_property
    def fields(self) -> list[str]:
        """The template's INPUTS, and which of "tools", "tool_calls" and "reasoning_content" it writes."""
        names = ("tools", "tool_calls", "reasoning_content", *INPUTS)
        return [name for name in names if self._trait(name)]

    def _trait(self, name: str) -> bool:
        """Probe the template for a trait; False with a message if that fails."""
        if not self._renderers:
            self._renderers.append(_Renderer(self._settings, self._seconds))
        (answer,) = self._renderers[0].ask_all([name])
        if "trait" not in answer:
            tell(f"chat template: no probe of {name}: {answer.get('fatal') or answer['failure']}")
        return bool(answer.get("trait"))

    def close(self) -> None:
        """End the rendering processes; a later call starts new ones."""
        for renderer in self._renderers:
            renderer.close()
        self._renderers = []

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
        self._renderers.append(_Renderer(self._settings, self._seconds))
        (answer,) = self._renderers[-1].ask_all(["endings"])
        if "endings" not in answer:
            raise ValueError(answer.get("fatal") or answer["failure"])
        return Endings(**answer["endings"])


def _day(given: str | None) -> str:
    try:
        return (date.today() if given is None else date.fromisoformat(given)).isoformat()
    except ValueError:
        raise ValueError(f"--template_date: expected a day such as 2026-11-26, got {given!r}") from None


class _Renderer:
    """A rendering process, started again after it had to be killed."""

    def __init__(self, settings: dict[str, Any], seconds: float) -> None:
        self._settings = settings
        self._patience = seconds + _GRACE
        self._worker: Worker | None = None

    def ask_all(self, requests: Sequence[Any]) -> list[dict[str, Any]]:
        """Return the answers to `requests`, of which several are under way at once."""
        answers: list[dict[str, Any]] = []
        while len(answers) < len(requests):
            worker = self._start()
            lines = [json.dumps(request) + "\n" for request in requests[len(answers) :]]
            worker.send("".join(lines).encode())
            while len(answers) < len(requests):
                answers.append(self._read(worker))
                if "killed" in answers[-1]:
                    break
        return answers

    def close(self) -> None:
        """End the process; a later request starts another."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def _start(self) -> Worker:
        if self._worker is None:
            self._worker = Worker("fastsft.data.chat.rendering.main", ("jinja2", "markupsafe"))
            self._worker.send(json.dumps(self._settings).encode() + b"\n")
            hello = self._read(self._worker)
            if "fatal" in hello or "failure" in hello:
                self.close()
                raise ValueError(hello.get("fatal") or hello["failure"])
        return self._worker

    def _read(self, worker: Worker) -> dict[str, Any]:
        deadline = Deadline(worker.process, self._patience, _LONGEST_WAIT * self._patience)
        try:
            line = worker.receive_line(deadline)
        except TimeoutError:
            return self._killed(f"takes more than {self._patience:g} s")
        if line is None:
            return self._killed("ended its process")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _killed(self, reason: str) -> dict[str, Any]:
        self.close()
        return {"failure": f"the chat template {reason}", "killed": True}


class Endings(NamedTuple):
    """The answer of `Program.endings` (rendering/program.py)."""

    last: str
    middle: str
    call: str
    after_call: str
    rest_of_prompt: str


def find_ends(around: Endings, native: _C.Tokenizer, bos: str, eos: str) -> tuple[Ends, str]:
    """Return the tokens that end replies, and the text from a reply's content to its stop token's end.

    native: the native tokenizer. bos, eos: its named tokens, "" for none. The stop token is EOS if every
    reply ends with it, else the first control token that ends every reply, else the first special token after
    the last reply. Failing that, the special token, other than BOS, with which a user's message begins after
    a reply, and for calls the token with which a tool's result begins. ValueError if there is none either.
    """
    last = _specials(around.last, native)
    if last:
        shared = _specials(around.last[: common_length(around.last, around.middle)], native)
        controls = [token for token in shared if native.is_control(native.find_token(token))]
        stop = eos if eos in shared else (controls or last)[0]
        return Ends(stop, _call_stop(around.call, stop, native)), _up_to(around.last, stop)
    middle, after_call = (_specials(text, native) for text in (around.middle, around.after_call))
    if middle and middle[0] != bos and around.middle.lstrip().startswith(middle[0]):
        begins = bool(after_call) and around.after_call.lstrip().startswith(after_call[0])
        return Ends(middle[0], after_call[0] if begins else "", True), _up_to(around.middle, middle[0])
    raise ValueError(
        f"the chat template ends a reply with {around.last!r}, which holds no special token: a model trained "
        "with it would not stop; use a named template (--template)"
    )


def _call_stop(call: str, stop: str, native: _C.Tokenizer) -> str:
    """Return the end of a call: the stop token, else the control token that ends its text, else ""."""
    specials = _specials(call, native)
    last = specials[-1] if specials else ""
    if stop in specials:
        return stop
    is_end = last and call.rstrip().endswith(last) and native.is_control(native.find_token(last))
    return last if is_end else ""


def _specials(text: str, native: _C.Tokenizer) -> list[str]:
    """Return the special tokens in a text, in order, except blank ones."""
    data = text.encode()
    ids, offsets = native.encode_with_offsets(data)
    pairs = zip(ids, offsets, strict=True)
    tokens = (data[begin:end].decode().strip() for token, (begin, end) in pairs if native.is_special(token))
    return [text for text in tokens if text]


def _up_to(text: str, stop: str) -> str:
    return text[: text.index(stop) + len(stop)]
