"""`loss.html`: the curves of a run as one page without any network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from importlib import resources

from fastsft.reporting.loss_history import Curve, LossHistory
from fastsft.reporting.loss_panels import drawing
from fastsft.reporting.svg_chart import NARROW, WIDTH
from fastsft.runtime.terminal import one_line


def loss_page(
    history: LossHistory, title: str, facts: Mapping[str, str], max_steps: int, talk: str = ""
) -> str:
    """The page. title: of the run. facts: names and texts of the cards above the curves.

    talk: the command that talks to the model, at the end of a run.
    """
    ending = f'<p class="talk">Talk to the model: <code>{_text(talk)}</code></p>' if talk else ""
    cards = "".join(
        f'<div class="card"><span>{_text(name)}</span><b>{_text(value)}</b></div>'
        for name, value in facts.items()
    )
    end = max(history.last_step(), 0) or max_steps
    sizes = {"wide": WIDTH, "narrow": NARROW}
    drawn = {name: drawing(history, end, width=width) for name, width in sizes.items()}
    curves = "".join(
        f'<div class="{name}">{text or "<p>nothing has been logged yet</p>"}</div>'
        for name, text in drawn.items()
    )
    data = json.dumps(_points(history), separators=(",", ":")).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_file('loss_page.css')}</style></head><body>"
        f"<h1>{_text(title)}</h1><section class='cards'>{cards}</section>"
        f'<main id="curves">{curves}</main>{ending}<div id="tip" hidden></div>'
        f'<script type="application/json" id="points">{data}</script>'
        f"<script>{_file('loss_page.js')}</script></body></html>\n"
    )


def _points(history: LossHistory) -> dict[str, list[list[float]]]:
    """Name -> steps and values, for the box at the pointer."""
    curves = {
        "loss": history.train,
        "smoothed": history.train.smoothed(),
        **{f"{name} loss": curve for name, curve in history.evaluations.items()},
        "learning rate": history.learning_rate,
        "gradient norm": history.grad_norm,
    }
    return {name: _columns(curve.thinned(2000)) for name, curve in curves.items() if len(curve)}


def _columns(curve: Curve) -> list[list[float]]:
    return [list(curve.steps), [float(f"{value:.6g}") for value in curve.values]]


def _text(text: str) -> str:
    return escape(one_line(text))


def _file(name: str) -> str:
    return (resources.files("fastsft.reporting") / name).read_text(encoding="utf-8")
