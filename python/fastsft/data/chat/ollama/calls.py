"""Find the texts that a chat template writes around tool calls and their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastsft.data.chat.ollama.marked import (
    TOOLS,
    Found,
    Jinja,
    Units,
    call,
    common_back,
    common_front,
    mark,
    reply,
    result,
    split,
    user,
    without_back,
    without_front,
)
from fastsft.data.chat.ollama.turns import Refused, Turns

_OTHERWISE = "what it writes around calls depends on more than the role"
_Span = tuple[int, int]


@dataclass(frozen=True)
class Repeated:
    """Texts of things in a row: begin, each with a separator between two, end."""

    begin: Units
    each: Units
    between: Units
    end: Units


@dataclass(frozen=True)
class Calls:
    """The texts of calls and results.

    has_lead: calls without content follow the text that begins a reply. calls: the calls without content;
    end ends the reply. content: a content next to calls and the text before `calls.each`; None if the
    template leaves the content out. results: consecutive results. takes_several: the template takes several
    calls in a reply. as_text: it takes arguments as a JSON text.
    """

    has_lead: bool
    calls: Repeated
    content: Units | None
    results: Repeated
    takes_several: bool
    as_text: bool


def find_calls(jinja: Jinja, turns: Turns) -> Calls:
    """Return the texts. Refused if they cannot be found; the message is that of the first try."""
    reasons = []
    for as_text in (False, True):
        for counts in ((2, 2), (1, 2), (1, 1)):
            try:
                return _Search(jinja, turns, counts, as_text).found()
            except Refused as error:
                reasons.append(error)
    raise reasons[0]


class _Search:
    """The texts of a conversation with some calls and some results."""

    def __init__(self, jinja: Jinja, turns: Turns, counts: tuple[int, int], as_text: bool) -> None:
        self._jinja, self._turns, self._as_text = jinja, turns, as_text
        self._count = counts[0]
        calls = [call(i + 1, as_text) for i in range(counts[0])]
        self._calling = {**reply(), "content": "", "tool_calls": calls}
        self._results = [result(i + 1) for i in range(counts[1])]
        self._last = ("result", counts[1])
        ends = [reply(2), user(2)]
        units = self._units([self._calling, *self._results, *ends])
        parts, _ = self._split(units, ("user", 1), ("reply", 2))
        self._inside, self._after = parts[1], parts[2]
        numbers = [*range(1, counts[0] + 1)], [*range(1, counts[1] + 1)]
        self._spans = [self._span({"name": n, "args": n, "id": n}, ("name", "args")) for n in numbers[0]]
        self._result_spans = [
            self._span({"result": n, "of": n, "id": n + 2}, ("result",)) for n in numbers[1]
        ]

    def found(self) -> Calls:
        lead = self._turns.reply[:-1]
        begin = without_front(self._inside[: self._spans[0][0]], self._turns.after_user)
        if begin is None:
            raise Refused(_OTHERWISE)
        begun = without_front(begin, lead)
        has_lead = begun is not None
        start = begin if begun is None else begun
        middle = self._inside[self._spans[-1][1] : self._result_spans[0][0]]
        end = common_front([self._end_of_calls(), middle])
        results = self._repeated(self._result_spans, middle[len(end) :], self._end_of_results())
        calls = self._repeated(self._spans, start, end)
        if len(self._spans) == 1:  # the reply's end is not a part of the call
            closing = without_back(end, self._turns.after_reply)
            closed = (end, ()) if closing is None else (self._turns.after_reply, closing)
            calls = Repeated((), (*calls.each, *closed[1]), (), closed[0])
        return Calls(has_lead, calls, self._content(calls, lead), results, self._count > 1, self._as_text)

    def _units(self, messages: Sequence[dict[str, object]], prompt: bool = True) -> Units:
        units = self._jinja.units([user(), *messages], tools=TOOLS, prompt=prompt)
        if units is None:
            raise Refused(self._jinja.failure)
        return units

    def _split(self, units: Units, *names: tuple[str, int]) -> tuple[list[Units], list[Found]]:
        parts = split(units, *names)
        if parts is None:
            raise Refused("it changes or leaves out what is around calls")
        return parts

    def _span(self, numbers: dict[str, int], needed: Sequence[str]) -> _Span:
        """Return where the marks of a call or a result begin and end."""
        places = [
            i
            for i, unit in enumerate(self._inside)
            if isinstance(unit, Found) and numbers.get(unit.kind) == unit.number
        ]
        kinds = {unit.kind for i in places if isinstance(unit := self._inside[i], Found)}
        if not kinds.issuperset(needed):
            raise Refused("it does not write calls' names, arguments and results as they are")
        return places[0], places[-1] + 1

    def _end_of_calls(self) -> Units:
        last = self._inside[self._spans[-1][1] - 1]
        assert isinstance(last, Found)
        return self._split(self._units([self._calling], prompt=False), (last.kind, last.number))[0][-1]

    def _end_of_results(self) -> Units:
        """Return the text between the last mark of a result and the next message."""
        at = self._result_spans[-1][1]
        name = self._inside[at - 1]
        assert isinstance(name, Found)
        texts = [self._inside[at:]]
        for prompt in (True, False):
            units = self._units([self._calling, *self._results], prompt)
            texts.append(self._split(units, (name.kind, name.number))[0][-1])
        return common_front(texts)

    def _repeated(self, spans: list[_Span], begin: Units, end: Units) -> Repeated:
        """Divide the text of one or two things into the parts that each of them has, and the rest."""
        body = _unnumbered(self._inside[slice(*spans[0])])
        if len(spans) == 1:
            return Repeated((), (*begin, *body), (), end)
        between = self._inside[spans[0][1] : spans[1][0]]
        front = common_back([begin, between])
        gap = between[: len(between) - len(front)]
        back = common_front([gap, end])
        each = (*front, *body, *back)
        return Repeated(begin[: len(begin) - len(front)], each, gap[len(back) :], end[len(back) :])

    def _content(self, calls: Repeated, lead: Units) -> Units | None:
        """Return a content next to calls, with the text up to the first of `calls.each`."""
        speaking = {**self._calling, "content": mark("reply")}
        first = self._inside[self._spans[0][0]]
        assert isinstance(first, Found)
        units = self._units([speaking, *self._results])
        texts, _ = self._split(units, ("user", 1), (first.kind, first.number))
        front = next(i for i, unit in enumerate(calls.each) if isinstance(unit, Found))
        content = without_back(without_front(texts[1], self._turns.after_user) or (), calls.each[:front])
        if content is None:
            raise Refused(_OTHERWISE)
        if not any(isinstance(unit, Found) and unit.kind == "reply" for unit in content):
            return None
        written = without_front(content, lead)
        if written is None:
            raise Refused(_OTHERWISE)
        return _unnumbered(written)


def _unnumbered(units: Units) -> Units:
    return tuple(unit._replace(number=0) if isinstance(unit, Found) else unit for unit in units)
