"""Use the model's own Jinja chat template for the spans policy (`--template model`).

The rules are in docs/spec/fastchat_labels.md, section 5.3. Templates are rendered in separate processes
(`rendering/main.py`), because only a process can be stopped inside an endless operation and have a memory
limit.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fastsft.data.chat.jinja_form import without_bos
from fastsft.data.chat.rendering.probes import INPUTS
from fastsft.data.chat.rendering.reply_spans import Ends
from fastsft.data.chat.reply_endings import Endings, find_ends
from fastsft.runtime.messages import tell
from fastsft.runtime.threads import denied
from fastsft.runtime.worker import Deadline, Worker

if TYPE_CHECKING:
    from fastsft import _C

SECONDS = 10.0
_GRACE = 5.0
_LONGEST_WAIT = 20  # wall-clock limit, as a multiple of the processor time limit
_MOST_WORKERS = 4
_SMALLEST_SHARE = 64
# Some templates take no system messages. Maps a text in such a template to the named template that writes the
# system text into the first user message.
_FOLDING = {"[INST]": "mistral", "<start_of_turn>": "gemma"}
_NAME = re.compile(r"[A-Za-z_]\w*")
_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")

Asked = tuple[str | None, list[tuple[str, str, bool, str]], str, str]
Rendered = tuple[list[tuple[str, bool, bool]], bool, bool, str, str, int, bool]


class ModelTemplate:
    """A model's own chat template. The object is called with conversations, and renders them.

    source: the Jinja text. tokenizer: a fastsft or Hugging Face tokenizer, whose special tokens the template
    may write. native: its native tokenizer. seconds: limit of processor time for a conversation. day: the
    date that the template sees, in ISO form; None for today. for_tools: True if the template is used only for
    conversations with tools.

    stop_token: the token that ends replies, found by rendering. call_stop_token: the token that ends tool
    calls; "" if it is the stop token or there is none. reply_ending: the text from the end of a reply's
    content to the end of its stop token.

    ValueError if the template does not compile, does something that the sandbox forbids, or ends replies
    without a special token.
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
        # The template sees a date without time of day, so that the token cache stays valid for a day and all
        # ranks have the same labels.
        self.date = read_day(day)
        self.asks_for_date = "strftime_now" in source
        self._seconds = seconds
        named = {name: getattr(tokenizer, name, None) for name in _NAMED}
        self._tokens = {name: str(text) for name, text in named.items() if text}
        self._settings = {
            "source": self.source, "tokens": self._tokens, "date": self.date, "adds_bos": adds_bos,
            "ends": (), "seconds": seconds,
        }  # fmt: skip
        if for_tools:
            self._settings["for_tools"] = True
        self._renderers: list[_Renderer] = []
        self._killed = 0
        try:
            around = self._endings()
            ends, self.reply_ending = find_ends(
                around, native, *(str(self._tokens.get(name, "")) for name in ("bos_token", "eos_token"))
            )
            self._renderers[0].know_ends(ends)
        except BaseException:
            self.close()
            raise
        self.stop_token = ends.reply
        self.call_stop_token = ends.call if ends.call != ends.reply else ""
        self._tell(around.rest_of_prompt, ends.reply if ends.next_turn else "")

    def _tell(self, rest_of_prompt: str, next_turn: str) -> None:
        """Print what the user should know of the template.

        rest_of_prompt: what replies without thoughts do not begin with. next_turn: the token of a user's
        message that ends replies. Both may be "".
        """
        if rest_of_prompt:
            tell(
                f"chat template: its prompt for a reply ends with {rest_of_prompt!r}, and a reply "
                "without thoughts goes on otherwise: it is learned from where the two part"
            )
        if next_turn:
            tell(f"chat template: it ends no reply; {next_turn}, with which a user's message begins, does")
        if self.asks_for_date:
            tell(f"chat template: strftime_now gives {self.date}, also past midnight")

    @property
    def digest(self) -> str:
        """The SHA-256 of all settings that affect the rendered text."""
        settings = {**self._settings, "seconds": None}
        if not self.asks_for_date:
            settings["date"] = None
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    def __call__(self, dialogues: Sequence[Asked]) -> list[Rendered]:
        """Render conversations, in order.

        dialogues: for each conversation a tuple of its system text, its messages (role, text, is_learned,
        further fields as JSON), its tools as JSON, and the template's variables as JSON (`read_variables`).
        The result is, for each conversation, a tuple of: the pieces (text, is_data, is_learned); True if a
        BOS must be added before the text; True if is_data is known; the error message ("" if none); the texts
        of the further fields; the number of a learned message that the template changes (or -1); True if the
        error is that replies need rows of their own.
        """
        return [
            self._with_way_out(written) if written[3] and dialogue[0] is not None else written
            for dialogue, written in zip(dialogues, self._ask(dialogues), strict=True)
        ]

    def _with_way_out(self, written: Rendered) -> Rendered:
        """Add advice to the error message if the template writes no system texts."""
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
        """Render the prompt for each conversation's last message, which stands for a reply to generate.

        The prompt is rendered with `add_generation_prompt` or, if the template ignores that option, is the
        text up to the reply. The whole prompt is marked as learned.
        """
        return self._ask([{"prompt": dialogue} for dialogue in dialogues])

    def plain_text(self, request: dict[str, Any]) -> tuple[str, str]:
        """Return the text for a request to `Program.plain_text`, and the error message ("" if none)."""
        if not self._renderers:
            self._renderers.append(_Renderer(self._settings, self._seconds))
        (answer,) = self._renderers[0].ask_all([{"plain": request}])
        return answer.get("text", ""), answer.get("fatal") or answer.get("failure", "")

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
        """True if the template writes a reply differently when messages follow it."""
        return self._trait("rewrites")

    @cached_property
    def rewrites_thoughts(self) -> bool:
        """True if the template writes a reply with thoughts differently when messages follow it."""
        return self._trait("rewrites_thoughts")

    @cached_property
    def lacks_bos(self) -> bool:
        """True if the tokenizer puts a BOS before a text and the template writes none."""
        return self._trait("lacks_bos")

    @property
    def first_text(self) -> str:
        """The text that the template writes for a short conversation."""
        (written,) = self([(None, [("user", "Hi", False, ""), ("assistant", "Ho", True, "")], "", "")])
        return "".join(text for text, _, _ in written[0])

    @cached_property
    def marks_replies(self) -> bool:
        """True if the template shows where replies begin, by a generation prompt or generation blocks."""
        return self._trait("marks_replies")

    @cached_property
    def fields(self) -> list[str]:
        """The traits of the template: those of INPUTS, and the names of a record's fields that it reads.

        `chat_template_kwargs.NAME` stands for each name in its source, of which a record may give a value.
        """
        names = ("tools", "tool_calls", "reasoning_content", *INPUTS)
        variables = [f"chat_template_kwargs.{name}" for name in sorted(set(_NAME.findall(self.source)))]
        return ["chat_template_kwargs", *variables, *(name for name in names if self._trait(name))]

    def _trait(self, name: str) -> bool:
        """True if the template has the trait `name` (`Program.trait`).

        If the probe fails, print a message and return False.
        """
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
            raise _with_place(answer)
        return Endings(**answer["endings"])


def _with_place(answer: dict[str, Any]) -> ValueError:
    return ValueError(
        f"{answer.get('fatal') or answer['failure']}; mend it, in the model's chat_template.jinja or "
        "tokenizer_config.json, or take another: --template NAME"
    )


def read_day(given: str | None) -> str:
    """Return a day as YYYY-MM-DD; today if it is None. ValueError for a text of another form."""
    try:
        return (date.today() if given is None else date.fromisoformat(given)).isoformat()
    except ValueError:
        raise ValueError(f"--template_date: expected a day such as 2026-11-26, got {given!r}") from None


class _Renderer:
    """A rendering process. If it had to be killed, the next request starts a new process."""

    def __init__(self, settings: dict[str, Any], seconds: float) -> None:
        self._settings = settings
        self._patience = seconds + _GRACE
        self._worker: Worker | None = None

    def ask_all(self, requests: Sequence[Any]) -> list[dict[str, Any]]:
        """Send all requests at once, and return the answers in order."""
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

    def know_ends(self, ends: Ends) -> None:
        """Set the field `ends` of `Program`, also in processes that are started later."""
        self._settings["ends"] = ends
        self.ask_all([{"ends": ends}])

    def close(self) -> None:
        """End the process; a later request starts a new process."""
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
                raise _with_place(hello)
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
