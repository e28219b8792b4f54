"""Draws charts as inline SVG: curves over optimizer steps, and bars over ranges of integers.

Line charts take the text colour of their page, so that they fit light and dark pages. Bar charts take their
colours from the page's CSS.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate, pairwise

WIDTH = 760
NARROW = 380  # chart width for phone screens
LEFT, RIGHT, TOP, BOTTOM = 62, 22, 26, 42
_LABEL_ROOM = 62
_LABELLED = 200  # charts below this height have no epoch labels
_FONT: dict[str, object] = {"font_family": "system-ui,sans-serif", "font_size": 12}
_BARS_LEFT, _BARS_RIGHT, _BARS_TOP, _BARS_BOTTOM = 54, 480, 20, 120


@dataclass(frozen=True)
class Curve:
    """Values over optimizer steps. steps: in increasing order. values: finite."""

    steps: tuple[int, ...] = ()
    values: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.steps)

    def best(self) -> tuple[int, float] | None:
        """Return the step and value of the minimum; None if the curve has no points."""
        return min(zip(self.steps, self.values, strict=True), key=lambda point: point[1], default=None)

    def smoothed(self) -> Curve:
        """Return the curve's exponential mean on both sides, over a twentieth of all points but at least 3.

        Because both sides count, the mean does not lag behind.
        """
        keep = 1 - 1 / max(len(self) / 20, 3)
        before = _decaying_sums(self.values, keep)
        after = _decaying_sums(self.values[::-1], keep)[::-1]
        weights = _decaying_sums((1.0,) * len(self), keep)
        values = tuple(
            (left + right - value) / (weight + other - 1)
            for left, right, value, weight, other in zip(
                before, after, self.values, weights, weights[::-1], strict=True
            )
        )
        return Curve(self.steps, values)

    def thinned(self, most: int = 1000) -> Curve:
        """Return a curve with about `most` points.

        The minimum and the maximum of each stretch are kept, so that no spike is lost.
        """
        if len(self) <= most:
            return self
        stretch = math.ceil(2 * len(self) / most)
        kept: list[int] = []
        for begin in range(0, len(self), stretch):
            indices = range(begin, min(begin + stretch, len(self)))
            kept += sorted(
                {min(indices, key=self.values.__getitem__), max(indices, key=self.values.__getitem__)}
            )
        return Curve(tuple(self.steps[i] for i in kept), tuple(self.values[i] for i in kept))


def _decaying_sums(values: tuple[float, ...], keep: float) -> list[float]:
    """Return running sums of `values`, in which each step first multiplies the previous sum by `keep`."""
    return list(accumulate(values, lambda total, value: keep * total + value))


@dataclass(frozen=True)
class Line:
    """A curve with its name and drawing style.

    has_marks: True to draw a dot at every point, for curves with few points.
    """

    name: str
    curve: Curve
    colour: str
    opacity: float = 1.0
    has_marks: bool = False


@dataclass(frozen=True)
class Axes:
    """The ranges of steps and values in a chart, and their mapping to coordinates in pixels."""

    steps: tuple[float, float]
    values: tuple[float, float]
    height: int
    width: int = WIDTH

    @classmethod
    def around(cls, lines: Sequence[Line], last_step: int, height: int, width: int = WIDTH) -> Axes:
        """Return axes from step 0 to `last_step`, with a margin above and below the lines' values."""
        values = [value for line in lines for value in line.curve.values]
        low, high = min(values), max(values)
        margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
        return cls((0.0, float(max(last_step, 1))), (low - margin, high + margin), height, width)

    @property
    def right(self) -> int:
        """x coordinate at the axis's right end."""
        return self.width - RIGHT

    def x(self, step: float) -> float:
        """Return a step's x coordinate."""
        share = (step - self.steps[0]) / (self.steps[1] - self.steps[0])
        return LEFT + share * (self.right - LEFT)

    def y(self, value: float) -> float:
        """Return a value's y coordinate."""
        share = (value - self.values[0]) / (self.values[1] - self.values[0])
        return self.height - BOTTOM - share * (self.height - TOP - BOTTOM)


def line_chart(
    title: str,
    lines: Sequence[Line],
    *,
    last_step: int,
    epochs: Sequence[tuple[int, int]] = (),
    height: int = 220,
    width: int = WIDTH,
) -> str:
    """Return the chart as SVG; "" if no line has a point. epochs: (epoch, step) of each vertical mark."""
    drawn = [line for line in lines if len(line.curve)]
    if not drawn:
        return ""
    axes = Axes.around(drawn, last_step, height, width)
    parts = [*_grid(axes), *_epochs(axes, epochs), *_title(title, drawn, axes)]
    parts += [part for line in drawn for part in _line(axes, line)]
    parts.append(_cursor(axes))
    return _element(
        "svg", "".join(parts), class_="chart", viewBox=f"0 0 {width} {height}", role="img",
        aria_label=escape(title), style=f"width:100%;max-width:{int(1.4 * width)}px;display:block",
        data_last=f"{axes.steps[1]:g}", data_left=LEFT, data_right=axes.right,
    )  # fmt: skip


def _grid(axes: Axes) -> Iterator[str]:
    ticks = round_ticks(*axes.values, most=5)
    for tick in ticks:
        yield _rule(LEFT, axes.y(tick), axes.right, axes.y(tick), 0.15)
        yield _text(LEFT - 8, axes.y(tick) + 4, tick_text(tick, ticks), "end")
    steps = [
        step for step in round_ticks(*axes.steps, most=9 if axes.width == WIDTH else 5) if step == int(step)
    ]
    for step in steps:
        yield _text(axes.x(step), axes.height - 24, tick_text(step, steps), "middle")
    yield _rule(LEFT, axes.height - BOTTOM, axes.right, axes.height - BOTTOM, 0.6)
    yield _text((LEFT + axes.right) / 2, axes.height - 8, "step", "middle", 0.6)


def _epochs(axes: Axes, epochs: Sequence[tuple[int, int]]) -> Iterator[str]:
    free: float = LEFT  # right end of the last epoch label
    for epoch, step in epochs[:: len(epochs) // 10 + 1]:
        x = axes.x(step)
        if x > axes.right + 1:
            continue
        yield _rule(x, TOP, x, axes.height - BOTTOM, 0.35, stroke_dasharray="3 4")
        if axes.height >= _LABELLED and x >= free and x + _LABEL_ROOM < axes.right:
            free = x + _LABEL_ROOM
            yield _text(x + 4, TOP + 10, f"epoch {epoch}", "start", 0.6)


def _title(title: str, lines: Sequence[Line], axes: Axes) -> Iterator[str]:
    begin = LEFT if axes.width == WIDTH else 8  # narrow charts need this space for line names
    yield _element("text", escape(title), x=begin, y=15, **_FONT, font_weight=600, fill="currentColor")
    if len(lines) == 1 and lines[0].name == title:
        return
    x = axes.right
    for line in reversed(lines):
        x -= 7 * len(line.name) + 8
        yield _text(x, 15, line.name, "start")
        yield _element(
            "line", x1=x - 22, y1=11, x2=x - 6, y2=11, stroke=line.colour, stroke_width=3,
            stroke_opacity=str(line.opacity),
        )  # fmt: skip
        x -= 34


def _line(axes: Axes, line: Line) -> Iterator[str]:
    curve = line.curve.thinned()
    points = [(axes.x(s), axes.y(v)) for s, v in zip(curve.steps, curve.values, strict=True)]
    if len(points) > 1:
        yield _element(
            "polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), fill="none",
            stroke=line.colour, stroke_width="1.8", stroke_linejoin="round", stroke_opacity=str(line.opacity),
        )  # fmt: skip
    if len(points) == 1 or (line.has_marks and len(points) <= 60):
        for x, y in points:
            yield _element("circle", cx=x, cy=y, r=3, fill=line.colour)


def _cursor(axes: Axes) -> str:
    """Return the hidden vertical line that the page's script shows at the mouse pointer."""
    return _element(
        "line", class_="cursor", x1=0, y1=TOP, x2=0, y2=axes.height - BOTTOM, stroke="currentColor",
        stroke_opacity="0.5", visibility="hidden",
    )  # fmt: skip


def _rule(x1: float, y1: float, x2: float, y2: float, opacity: float, **more: object) -> str:
    return _element(
        "line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), stroke="currentColor",
        stroke_opacity=str(opacity), **more,
    )  # fmt: skip


def _text(x: float, y: float, text: str, anchor: str, opacity: float = 0.8) -> str:
    return _element(
        "text", escape(text), x=float(x), y=float(y), text_anchor=anchor, **_FONT, fill="currentColor",
        fill_opacity=str(opacity),
    )  # fmt: skip


@dataclass(frozen=True)
class Bar:
    """A bar: how many rows have a value in [begin, end)."""

    begin: int
    end: int
    count: int


def bar_chart(title: str, bars: Sequence[Bar], most: int) -> str:
    """Return the chart as SVG: row counts over token counts. most: the right end of the token axis."""
    columns = "".join(_columns(bars))
    axes = _bar_axes(bars, title.lower(), most)
    return _element("svg", columns + axes, viewBox="0 0 480 150", role="img", aria_label=title)


def _columns(bars: Sequence[Bar]) -> Iterator[str]:
    highest, step = max(bar.count for bar in bars), (_BARS_RIGHT - _BARS_LEFT) / len(bars)
    for number, bar in enumerate(bars):
        height = 100 * bar.count / highest
        tip = f"<title>{bar.begin:,} to {bar.end - 1:,} tokens: {bar.count:,} rows</title>"
        x, width = _BARS_LEFT + number * step + 1, float(max(step - 2, 1))
        yield _element("rect", tip, x=x, y=_BARS_BOTTOM - height, width=width, height=height)


def _bar_axes(bars: Sequence[Bar], name: str, most: int) -> str:
    left, right, line, low = _BARS_LEFT, _BARS_RIGHT, _BARS_LEFT - 0.5, _BARS_BOTTOM + 0.5
    highest = max(bar.count for bar in bars)
    return "".join(
        [
            _element("line", x1=left, y1=low, x2=right, y2=low),
            _element("line", x1=line, y1=_BARS_TOP, x2=line, y2=low),
            _element("text", f"{highest:,}", x=left - 6, y=28, text_anchor="end"),
            _element("text", "0", x=left - 6, y=_BARS_BOTTOM, text_anchor="end"),
            _element("text", "rows", x=left, y=12, text_anchor="start"),
            _element("text", f"{bars[0].begin:,}", x=left, y=138),
            _element("text", name, x=(left + right) / 2, y=138, text_anchor="middle"),
            _element("text", f"{most:,}", x=right, y=138, text_anchor="end"),
        ]
    )


def _element(name: str, content: str = "", /, **attributes: object) -> str:
    """Return an SVG element.

    Floats are coordinates, and are written with one decimal. In attribute names, `_` becomes `-`.
    """
    texts = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{f"{value:.1f}" if isinstance(value, float) else value}"'
        for key, value in attributes.items()
    )
    return f"<{name}{texts}>{content}</{name}>" if content else f"<{name}{texts}/>"


def round_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return at most `most` ticks in [low, high]: multiples of 1, 2 or 5 times a power of ten."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low] if math.isfinite(low) else []
    raw = (high - low) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    width = next(
        power * factor for factor in (1, 2, 5, 10, 20) if _tick_count(low, high, power * factor) <= most
    )
    first = math.ceil(low / width - 1e-9)
    return [number * width for number in range(first, math.floor(high / width + 1e-9) + 1)]


def tick_text(value: float, ticks: list[float]) -> str:
    """Return `value` with as many decimals as distinguish the ticks; tiny and huge values look like 2e-05."""
    width = min((abs(b - a) for a, b in pairwise(ticks)), default=abs(value) or 1.0)
    largest = max((abs(tick) for tick in ticks), default=abs(value))
    if largest and (largest < 1e-3 or largest >= 1e6):
        return "0" if abs(value) < width / 2 else f"{value:.3g}"
    decimals = max(0, -math.floor(math.log10(width) + 1e-9)) if width > 0 else 0
    return f"{value:,.{decimals}f}"


def _tick_count(low: float, high: float, width: float) -> int:
    return math.floor(high / width + 1e-9) - math.ceil(low / width - 1e-9) + 1
