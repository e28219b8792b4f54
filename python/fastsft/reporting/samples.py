"""Shows the sample replies of a run (`--sample_prompts`) as text and as HTML."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fastsft.callbacks.samples import SAMPLES, shown_prompt
from fastsft.reporting.page import html_text
from fastsft.runtime.terminal import visible

_MOST_STEPS = 12  # evaluations on the page, the newest

Sample = Mapping[str, str]


def sample_lines(samples: Sequence[Sample], step: int) -> str:
    """Return prompts and replies as indented lines for a terminal."""
    parts = [f"step {step}, {len(samples)} sample repl{'y' if len(samples) == 1 else 'ies'}:"]
    for sample in samples:
        parts.append(textwrap.indent(visible(shown_prompt(sample), keep="\n"), "  > "))
        parts.append(textwrap.indent(visible(sample["reply"] or "(nothing)", keep="\n\t"), "    "))
    return "\n".join(parts)


def samples_html(log_history: Iterable[Mapping[str, Any]], most_steps: int = _MOST_STEPS) -> str:
    """Return a table with the newest replies to each prompt; "" without samples."""
    entries = [entry for entry in log_history if isinstance(entry.get(SAMPLES), list)][-most_steps:]
    if not entries:
        return ""
    head = "<tr><th>prompt</th><th class='step'>step</th><th>reply</th></tr>"
    return f"<table class='samples'>{head}{''.join(_rows(entries))}</table>"


def _rows(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for number, sample in enumerate(entries[-1][SAMPLES]):
        told = [
            (str(entry["step"]), entry[SAMPLES][number]["reply"])
            for entry in entries
            if number < len(entry[SAMPLES])
        ]
        if "expected" in sample:
            told.append(("data", sample["expected"]))
        for place, (step, reply) in enumerate(told):
            head = "" if place else f"<td rowspan='{len(told)}'>{_cell(shown_prompt(sample))}</td>"
            yield f"<tr>{head}<td class='step'>{step}</td><td>{_cell(reply)}</td></tr>"


def _cell(text: str) -> str:
    return "<br>".join(map(html_text, text.splitlines()))
