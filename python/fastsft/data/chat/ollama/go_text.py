"""Write a chat template's texts in the language of Go's text/template."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastsft.data.chat.ollama.calls import Calls
from fastsft.data.chat.ollama.go_defines import defined
from fastsft.data.chat.ollama.marked import Found, Units, common_back, common_front
from fastsft.data.chat.ollama.thoughts import Thoughts
from fastsft.data.chat.ollama.turns import Refused, Turns

_FIELDS = {
    "user": ".Content", "reply": ".Content", "later": ".Content", "result": ".Content",
    "thought": ".Thinking", "name": ".Function.Name", "args": ".Function.Arguments", "id": ".ID",
    "of": ".ToolName",
}  # fmt: skip
_DATES = {
    "Y": "{{ slice $date 0 4 }}", "y": "{{ slice $date 2 4 }}", "m": "{{ slice $date 5 7 }}",
    "d": "{{ slice $date 8 10 }}", "F": "{{ $date }}", "b": '{{ template "month" (slice $date 5 7) }}',
    "B": '{{ template "month_name" (slice $date 5 7) }}', "%": "%",
}  # fmt: skip
_LAST = "eq (len (slice $.Messages $i)) 1"
_NOT_LAST = "gt (len (slice $.Messages $i)) 1"
_SPECIAL = re.compile(r"\{\{|\"\"\"|[^\n\t -~]|\{\Z")


@dataclass(frozen=True)
class Parts:
    """All texts of a template. first_system: the system text is the first message's, not all of them joined.

    drops_empty: the template writes an empty system text as none.
    """

    turns: Turns
    calls: Calls | None
    thoughts: Thoughts | None
    first_system: bool
    drops_empty: bool

    def go_template(self) -> str:
        """Return the text for the field TEMPLATE of a Modelfile."""
        return _Writer(self).template()


class _Writer:
    """Writes the parts; `self._system` is Go's expression for the system text."""

    def __init__(self, parts: Parts) -> None:
        self._turns, self._calls, self._thoughts = parts.turns, parts.calls, parts.thoughts
        first = "(index $.Messages 0)"
        has = f'and $.Messages (eq {first}.Role "system")' + (
            f" {first}.Content" if parts.drops_empty else ""
        )
        self._system = f"{first}.Content" if parts.first_system else "$.System"
        self._has_system = has if parts.first_system else "$.System"
        if not parts.first_system and not parts.drops_empty:
            self._has_system = f"or $.System ({has})"
        self._fields = dict(_FIELDS, system=self._system)

    def template(self) -> str:
        body = self._front() + self._messages() + self._prompt()
        variables = [
            ("date", "currentDate"), ("system", self._has_system), ("first", "true"), ("role", '""'),
            ("last", "0"),
        ]  # fmt: skip
        declared = "".join(
            f"{{{{ ${name} := {value} }}}}" for name, value in variables if re.search(rf"\${name}\b", body)
        )
        if "$last" in body:
            declared += (
                '{{ range $i, $_ := .Messages }}{{ if eq .Role "user" }}{{ $last = $i }}{{ end }}{{ end }}'
            )
        return defined(body) + declared + body

    def _front(self) -> str:
        return self._choice(self._turns.fronts, ("$.Tools", "$system"))

    def _messages(self) -> str:
        branches = [('eq .Role "user"', self._user()), ('eq .Role "assistant"', self._reply())]
        if self._calls:
            branches.append(('eq .Role "tool"', self._result(self._calls)))
        if self._turns.later:
            branches.append(("$i", self._units(self._turns.later)))
        text = "".join(
            f"{{{{ {'else ' if i else ''}if {condition} }}}}{body}"
            for i, (condition, body) in enumerate(branches)
        )
        body = f"{text}{{{{ end }}}}{{{{ $role = .Role }}}}"
        return f"{{{{ range $i, $message := .Messages }}}}{body}{{{{ end }}}}"

    def _user(self) -> str:
        conditions = "$.Tools", "$system", "$first", "eq $i $last", _LAST
        text = self._choice(self._turns.before_user, conditions) + self._units(self._turns.after_user)
        return f"{text}{{{{ $first = false }}}}" if "$first" in text else text

    def _reply(self) -> str:
        lead, content = self._units(self._turns.reply[:-1]), self._units(self._turns.reply[-1:])
        calls, thoughts = self._calls, self._thoughts
        thinks = begin = ""
        if thoughts and thoughts.block:
            value = ".Thinking" if thoughts.in_earlier else "and .Thinking (gt $i $last)"
            thinks = f"{{{{ $thinks := {value} }}}}"
            begin = f"{{{{ if $thinks }}}}{self._units(thoughts.block)}{{{{ end }}}}"
            if thoughts.content != self._turns.reply[-1:]:
                other = self._units(thoughts.content)
                content = f"{{{{ if $thinks }}}}{other}{{{{ else }}}}{content}{{{{ end }}}}"
        end = f"{{{{ if {_NOT_LAST} }}}}{self._units(self._turns.after_reply)}{{{{ end }}}}"
        if not calls:
            return thinks + lead + begin + content + end
        if not calls.has_lead:
            lead = f"{{{{ if not .ToolCalls }}}}{lead}{{{{ end }}}}" if lead else ""
        return thinks + lead + begin + self._called(calls, content, end)

    def _called(self, calls: Calls, content: str, end: str) -> str:
        """Return a reply's content, calls and end.

        Ollama takes the first text in `if .ToolCalls` for the beginning of the calls in a reply, and looks at
        no action whose condition has the field in parentheses.
        """
        has_calls = "(len .ToolCalls)"
        if calls.content is None:
            said = f"{{{{ if not {has_calls} }}}}{content}{{{{ end }}}}"
            before, shared = "", calls.calls.begin
        else:
            place = next(i for i, unit in enumerate(calls.content) if isinstance(unit, Found))
            after, begin = calls.content[place + 1 :], calls.calls.begin
            shared = common_back([after, begin])
            gaps = {(True,): after[: len(after) - len(shared)], (False,): begin[: len(begin) - len(shared)]}
            gap = self._choice(gaps, (".Content",))
            said = content
            before = f"{{{{ if {has_calls} }}}}{gap}{{{{ end }}}}" if gap else ""
        between = self._units(calls.calls.between)
        each = self._units(calls.calls.each)
        if between:
            each += f"{{{{ if gt (len (slice $message.ToolCalls $j)) 1 }}}}{between}{{{{ end }}}}"
        made = f"{self._units(shared)}{{{{ range $j, $call := .ToolCalls }}}}{each}{{{{ end }}}}"
        ended = f"{{{{ if {_NOT_LAST} }}}}{self._units(calls.calls.end)}{{{{ end }}}}"
        return f"{said}{before}{{{{ if .ToolCalls }}}}{made}{ended}{{{{ else }}}}{end}{{{{ end }}}}"

    def _result(self, calls: Calls) -> str:
        parts = calls.results
        fields = dict(self._fields, id=".ToolCallID")
        cases = {(True,): parts.begin, (False,): parts.between}
        begin = self._choice(cases, ('ne $role "tool"',), fields)
        end = self._units(parts.end, fields)
        if end:
            following = "(index (slice $.Messages $i) 1).Role"
            end = (
                f'{{{{ $next := "" }}}}{{{{ if {_NOT_LAST} }}}}{{{{ $next = {following} }}}}{{{{ end }}}}'
                f'{{{{ if ne $next "tool" }}}}{end}{{{{ end }}}}'
            )
        return begin + self._units(parts.each, fields) + end

    def _prompt(self) -> str:
        prompts = dict(self._thoughts.prompts) if self._thoughts else {}
        cases: dict[tuple[bool, ...], Units] = {}
        for is_set in (False, True):
            for value in (False, True):
                cases[is_set, value] = (
                    prompts.get(value, self._turns.prompt) if is_set else self._turns.prompt
                )
        text = self._choice(cases, ("$.IsThinkSet", "$.Think"))
        return f'{{{{ if ne $role "assistant" }}}}{text}{{{{ end }}}}' if text else ""

    def _choice(
        self, cases: Mapping[Any, Units], conditions: Sequence[str],
        fields: Mapping[str, str] | None = None,
    ) -> str:  # fmt: skip
        """Return a text that depends on conditions, with the common beginning and end outside of them.

        cases: the texts, by a tuple that says for each condition if it is true.
        """
        texts = list(cases.values())
        if not texts or all(text == texts[0] for text in texts):
            return self._units(texts[0], fields) if texts else ""
        front = _whole(common_front(texts))
        back = _whole(common_back([text[len(front) :] for text in texts])[::-1])[::-1]
        if front or back:
            inner = {key: text[len(front) : len(text) - len(back)] for key, text in cases.items()}
            middle = self._choice(inner, conditions, fields)
            return self._units(front, fields) + middle + self._units(back, fields)
        yes = {key[1:]: text for key, text in cases.items() if key[0]}
        no = {key[1:]: text for key, text in cases.items() if not key[0]}
        if not yes or not no or yes == no:
            return self._choice(yes or no, conditions[1:], fields)
        one, other = self._choice(yes, conditions[1:], fields), self._choice(no, conditions[1:], fields)
        if not one:
            return f"{{{{ if not ({conditions[0]}) }}}}{other}{{{{ end }}}}"
        otherwise = f"{{{{ else }}}}{other}" if other else ""
        return f"{{{{ if {conditions[0]} }}}}{one}{otherwise}{{{{ end }}}}"

    def _units(self, units: Units, fields: Mapping[str, str] | None = None) -> str:
        parts, text = [], ""
        for unit in units:
            if isinstance(unit, str):
                text += unit
            else:
                parts += [_literal(text), self._found(unit, fields or self._fields)]
                text = ""
        return "".join([*parts, _literal(text)])

    def _found(self, found: Found, fields: Mapping[str, str]) -> str:
        if found.kind == "date":
            return _date(found.form)
        if found.kind in ("tool", "function"):
            each = "$tool" if found.kind == "tool" else "$tool.Function"
            between = self._units(found.between)
            gap = f"{{{{ if $j }}}}{between}{{{{ end }}}}" if between else ""
            body = f'{gap}{{{{ template "{found.form}" {each} }}}}'
            return f"{{{{ range $j, $tool := $.Tools }}}}{body}{{{{ end }}}}"
        value = fields[found.kind]
        return f'{{{{ template "{found.form}" {value} }}}}' if found.form else f"{{{{ {value} }}}}"


def _whole(units: Units) -> Units:
    """Return the part of common units that ends with a tag, a line, a white space or a value."""
    for at in range(len(units), 0, -1):
        last = units[at - 1]
        if isinstance(last, Found) or last in "\n <>[]":
            return units[:at]
    return ()


def _date(form: str) -> str:
    parts = re.split("(%.)", form)
    unknown = [part for part in parts if part.startswith("%") and part[1:] not in _DATES]
    if unknown:
        raise Refused(f"it writes the date as {form!r}, and Ollama has no {', '.join(unknown)}")
    return "".join(_DATES[part[1:]] if part.startswith("%") else _literal(part) for part in parts)


def _literal(text: str) -> str:
    """Return text for a Go template. Ollama leaves out a Modelfile's characters that do not print."""
    return _SPECIAL.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    text = found[0]
    if text[0] in '{"':
        quoted = text.replace('"', '\\"')
        return '""{{ "\\"" }}' if text == '"""' else f'{{{{ "{quoted}" }}}}'
    if text.isprintable():
        return text
    return f'{{{{ "\\U{ord(text):08x}" }}}}' if ord(text) > 0xFFFF else f'{{{{ "\\u{ord(text):04x}" }}}}'
