"""Write the Go templates that exported templates call: trimmed texts, JSON texts, and names of months.

Go's text/template has no function for them, and Ollama adds none. Its `json` is compact and escapes <, >
and &; transformers' `tojson` writes a space after a comma and a colon, and those characters as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_ASCII = "\t\n\v\f\r\x1c\x1d\x1e\x1f "
_WIDE = (
    "\u0085\u00a0",
    "\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000",
)
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
    "November", "December",
)  # fmt: skip
_INCLUDED = re.compile(r'\{\{ template "(\w+)"')

# A state machine over the characters of Go's compact JSON. $skip holds the bytes that were already written.
_JSON = (
    '{{ $json := json . }}{{ $text := false }}{{ $skip := "" }}%(begin)s{{ range $i := len $json }}'
    "{{ if $skip }}{{ $skip = slice $skip 1 }}{{ continue }}{{ end }}"
    '{{ $c := printf "%%.1s" (slice $json $i) }}{{ $skip = slice $c 1 }}'
    '{{ if and $text (eq $c "\\\\") }}{{ $c = printf "%%.6s" (slice $json $i) }}{{ $skip = "12345" }}'
    '{{ if eq $c "\\\\u003c" }}<{{ else if eq $c "\\\\u003e" }}>{{ else if eq $c "\\\\u0026" }}&'
    '{{ else if eq $c "\\\\u2028" }}{{ "\\u2028" }}{{ else if eq $c "\\\\u2029" }}{{ "\\u2029" }}'
    '{{ else }}{{ slice $c 0 2 }}{{ $skip = "1" }}{{ end }}'
    '{{ else if $text }}{{ $c }}{{ $text = not (eq $c "\\"") }}'
    '%(outside)s{{ else }}{{ $c }}{{ $text = eq $c "\\"" }}{{ if eq $c ":"%(comma)s }} {{ end }}{{ end }}'
    "{{ end }}"
)
_OF_LINES = (
    '{{ else if eq (printf "%.2s" (slice $json $i)) "{}" "[]" }}{{ printf "%.2s" (slice $json $i) }}'
    '{{ $skip = "1" }}'
    '{{ else if eq $c "{" "[" }}{{ $line = printf "%s    " $line }}{{ $c }}{{ $line }}'
    '{{ else if eq $c "}" "]" }}{{ $line = slice $line 0 (len (slice $line 4)) }}{{ $line }}{{ $c }}'
    '{{ else if eq $c "," }},{{ $line }}'
)

_RAW = (
    '{"type": "function", "function": {{ "{" }}"name": "{{ .Function.Name }}", {{ if .Function.Description }}'
    '"description": "{{ .Function.Description }}", {{ end }}'
    '"parameters": {{ template "json" .Function.Parameters }}}}'
)


def defined(text: str) -> str:
    """Return the definitions of all templates that `text` includes, directly or by another."""
    needed: dict[str, str] = {}
    names = _INCLUDED.findall(text)
    while names:
        if (name := names.pop()) not in needed:
            needed[name] = _BODIES[name]
            names += _INCLUDED.findall(needed[name])
    blocks = (f'{{{{- define "{name}" -}}}}{body}{{{{- end -}}}}' for name, body in needed.items())
    return "\n".join(blocks) + ("\n" if needed else "")


def _quoted(characters: str) -> str:
    return " ".join(f'"\\u{ord(one):04x}"' for one in characters)


def _left(name: str, characters: tuple[str, ...], rest: str) -> str:
    """Return a body that writes the text without `characters` at its beginning, by the template `rest`."""
    spaces = _quoted("".join(characters))
    return (
        f'{{{{ if . }}}}{{{{ $first := printf "%.1s" . }}}}{{{{ if eq $first {spaces} }}}}'
        f'{{{{ template "{name}" (slice . (len $first)) }}}}{{{{ else }}}}{rest}{{{{ end }}}}{{{{ end }}}}'
    )


def _right(name: str, characters: tuple[str, ...]) -> str:
    """Return a body that writes the text without `characters` at its end.

    characters: those of one byte in UTF-8, of two and of three.
    """
    ends = "".join(
        f"{{{{ if and $go (ge (len .) {size}) }}}}"
        f"{{{{ if eq (slice . (len (slice . {size}))) {_quoted(group)} }}}}"
        f'{{{{ $go = false }}}}{{{{ template "{name}" (slice . 0 (len (slice . {size}))) }}}}'
        "{{ end }}{{ end }}"
        for size, group in enumerate(characters, 1)
    )
    return f"{{{{ $go := true }}}}{ends}{{{{ if $go }}}}{{{{ . }}}}{{{{ end }}}}"


def _month(names: tuple[str, ...]) -> str:
    tests = (f'{{{{ if eq . "{number:02}" }}}}{name}{{{{ end }}}}' for number, name in enumerate(names, 1))
    return "".join(tests)


def _bodies() -> Iterator[tuple[str, str]]:
    for suffix, characters in (("", (_ASCII, *_WIDE)), ("_lines", ("\n",))):
        both, left, right = (f"{name}{suffix}" for name in ("strip", "left", "right"))
        yield left, _left(left, characters, "{{ . }}")
        yield both, _left(both, characters, f'{{{{ template "{right}" . }}}}')
        yield right, _right(right, characters)
    yield "json", _JSON % {"begin": "", "outside": "", "comma": ' ","'}
    begin = '{{ $line := "\\n" }}'
    yield "json_lines", _JSON % {"begin": begin, "outside": _OF_LINES, "comma": ""}
    yield (
        "json_compact",
        _JSON.replace('{{ if eq $c ":"%(comma)s }} {{ end }}', "") % {"begin": "", "outside": ""},
    )
    yield "json_raw", _RAW
    yield "month", _month(tuple(name[:3] for name in _MONTHS))
    yield "month_name", _month(_MONTHS)


_BODIES = dict(_bodies())
