"""Builds HTML pages that contain their style, script and data, and load nothing."""

from __future__ import annotations

import json
from html import escape
from importlib import resources

from fastsft.runtime.terminal import one_line


def html_page(
    title: str,
    body: str,
    data: tuple[str, object],
    files: tuple[str, str],
    base: tuple[str, str] | None = None,
) -> str:
    """Return an HTML page.

    body: HTML. data: (element id, value); the page's script reads the value as JSON from that element.
    files: (package, file name without ending) of the style (.css) and the script (.js). base: the files that
    several pages share, whose style and script come before.
    """
    name, value = data
    style, script = (
        "".join(_resource(*each, suffix) for each in (base, files) if each) for suffix in (".css", ".js")
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html_text(title)}</title><style>{style}</style></head><body>{body}"
        f'<div id="tip" hidden></div><script type="application/json" id="{name}">{_json(value)}</script>'
        f"<script>{script}</script></body></html>\n"
    )


def html_text(text: str) -> str:
    """Return `text` escaped for HTML, with control characters written as escape sequences."""
    return escape(one_line(text))


def card(name: str, value: str, more: str = "") -> str:
    """Return a card that shows `value`, with `name` above and `more` below it; all three are HTML."""
    small = f"<small>{more}</small>" if more else ""
    return f'<div class="card"><span>{name}</span><b>{value}</b>{small}</div>'


def _json(value: object) -> str:
    """Return JSON without characters that could end the surrounding script element."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _resource(package: str, stem: str, suffix: str) -> str:
    return (resources.files(package) / f"{stem}{suffix}").read_text(encoding="utf-8")
