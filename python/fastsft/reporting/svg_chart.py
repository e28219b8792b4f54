"""Line charts as inline SVG that fits light and dark pages: text and axes have the page's own colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from fastsft.reporting.axis_ticks import round_ticks, tick_text
from fastsft.reporting.loss_history import Curve

WIDTH = 760
NARROW = 380  # for the screen of a phone
LEFT, RIGHT, TOP, BOTTOM = 62, 22, 26, 42
_LABEL_ROOM = 62
_LABELLED = 200  # height from which epochs have their names
_FONT = 'font-family="system-ui,sans-serif" font-size="12"'


@dataclass(frozen=True)
class Line:
    """A curve as drawn. has_marks: a dot at every point, for curves of few points."""

    name: str
    curve: Curve
    colour: str
    opacity: float = 1.0
    has_marks: bool = False


@dataclass(frozen=True)
class Axes:
    """From steps and values to places in the picture."""

    steps: tuple[float, float]
    values: tuple[float, float]
    height: int
    width: int = WIDTH

    @classmethod
    def around(cls, lines: Sequence[Line], last_step: int, height: int, width: int = WIDTH) -> Axes:
        """Steps from 0 to `last_step`; a little room above and below the values."""
        values = [value for line in lines for value in line.curve.values]
        low, high = min(values), max(values)
        room = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
        return cls((0.0, float(max(last_step, 1))), (low - room, high + room), height, width)

    @property
    def right(self) -> int:
        """Right end of the axes."""
        return self.width - RIGHT

    def x(self, step: float) -> float:
        """Of a step."""
        share = (step - self.steps[0]) / (self.steps[1] - self.steps[0])
        return LEFT + share * (self.right - LEFT)

    def y(self, value: float) -> float:
        """Of a value."""
        share = (value - self.values[0]) / (self.values[1] - self.values[0])
        return self.height - BOTTOM - share * (self.height - TOP - BOTTOM)


def chart(
    title: str,
    lines: Sequence[Line],
    *,
    last_step: int,
    epochs: Sequence[tuple[int, int]] = (),
    height: int = 220,
    width: int = WIDTH,
) -> str:
    """One panel; "" when no line has a point. epochs: (epoch, step) of the vertical marks."""
    drawn = [line for line in lines if len(line.curve)]
    if not drawn:
        return ""
    axes = Axes.around(drawn, last_step, height, width)
    parts = [*_grid(axes), *_epochs(axes, epochs), *_title(title, drawn, axes)]
    parts += [part for line in drawn for part in _line(axes, line)]
    parts.append(_cursor(axes))
    return (
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}" '
        f'style="width:100%;max-width:{int(1.4 * width)}px;display:block" data-last="{axes.steps[1]:g}" '
        f'data-left="{LEFT}" data-right="{axes.right}">{"".join(parts)}</svg>'
    )


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
    free: float = LEFT  # from where no name of an epoch is
    for epoch, step in epochs[:: len(epochs) // 10 + 1]:
        x = axes.x(step)
        if x > axes.right + 1:
            continue
        yield _rule(x, TOP, x, axes.height - BOTTOM, 0.35, ' stroke-dasharray="3 4"')
        if axes.height >= _LABELLED and x >= free and x + _LABEL_ROOM < axes.right:
            free = x + _LABEL_ROOM
            yield _text(x + 4, TOP + 10, f"epoch {epoch}", "start", 0.6)


def _title(title: str, lines: Sequence[Line], axes: Axes) -> Iterator[str]:
    begin = LEFT if axes.width == WIDTH else 8  # the names of the lines need the room
    yield f'<text x="{begin}" y="15" {_FONT} font-weight="600" fill="currentColor">{escape(title)}</text>'
    if len(lines) == 1 and lines[0].name == title:
        return
    x = axes.right
    for line in reversed(lines):
        x -= 7 * len(line.name) + 8
        yield _text(x, 15, line.name, "start")
        yield (
            f'<line x1="{x - 22}" y1="11" x2="{x - 6}" y2="11" stroke="{line.colour}" stroke-width="3" '
            f'stroke-opacity="{line.opacity}"/>'
        )
        x -= 34


def _line(axes: Axes, line: Line) -> Iterator[str]:
    curve = line.curve.thinned()
    points = [(axes.x(s), axes.y(v)) for s, v in zip(curve.steps, curve.values, strict=True)]
    if len(points) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        yield (
            f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="1.8" '
            f'stroke-linejoin="round" stroke-opacity="{line.opacity}"/>'
        )
    if len(points) == 1 or (line.has_marks and len(points) <= 60):
        for x, y in points:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{line.colour}"/>'


def _cursor(axes: Axes) -> str:
    return (
        f'<line class="cursor" x1="0" y1="{TOP}" x2="0" y2="{axes.height - BOTTOM}" '
        'stroke="currentColor" stroke-opacity="0.5" visibility="hidden"/>'
    )


def _rule(x1: float, y1: float, x2: float, y2: float, opacity: float, more: str = "") -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="currentColor" '
        f'stroke-opacity="{opacity}"{more}/>'
    )


def _text(x: float, y: float, text: str, anchor: str, opacity: float = 0.8) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {_FONT} fill="currentColor" '
        f'fill-opacity="{opacity}">{escape(text)}</text>'
    )
