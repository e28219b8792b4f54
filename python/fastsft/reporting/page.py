"""HTML pages that load nothing: style, script and data are inside."""

from __future__ import annotations

import json
from html import escape
from importlib import resources

from fastsft.runtime.terminal import one_line


def html_page(title: str, body: str, data: tuple[str, object], files: tuple[str, str]) -> str:
    """Return a page.

    body: HTML. data: an element id and a value, which the script reads there as JSON. files: package and stem
    for style (.css) and script (.js).
    """
    name, value = data
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html_text(title)}</title><style>{_resource(*files, '.css')}</style></head><body>{body}"
        f'<div id="tip" hidden></div><script type="application/json" id="{name}">{_json(value)}</script>'
        f"<script>{_resource(*files, '.js')}</script></body></html>\n"
    )


def html_text(text: str) -> str:
    """Return `text` for HTML, with control characters as escapes."""
    return escape(one_line(text))


def card(name: str, value: str, more: str = "") -> str:
    """Return a number with its name above and `more` below; all three are HTML."""
    small = f"<small>{more}</small>" if more else ""
    return f'<div class="card"><span>{name}</span><b>{value}</b>{small}</div>'


def _json(value: object) -> str:
    """Return JSON that cannot end the element around."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _resource(package: str, stem: str, suffix: str) -> str:
    return (resources.files(package) / f"{stem}{suffix}").read_text(encoding="utf-8")
