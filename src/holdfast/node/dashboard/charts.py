"""Charts as SVG, drawn on the server: they are there without a script and need nothing from outside. No I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup

from holdfast.node.dashboard.text import rate

WIDTH, HEIGHT = 320, 96
TOP, FLOOR = 8, 80
"""Where the highest value and zero are. Below it stand the times."""
_NICE = (1.0, 2.0, 2.5, 5.0, 10.0)

Values = Sequence[float | None]
Show = Callable[[float | None], str]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart. None: nothing was measured then."""

    name: str
    values: Values


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn: at most three lines over the same times."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    start: float
    step: float
    show: Show = rate

    @property
    def latest(self) -> float | None:
        """Of the first line: the newest value."""
        return next((value for value in reversed(self.lines[0].values) if value is not None), None)

    @property
    def highest(self) -> float:
        """Of all lines."""
        return max((value for line in self.lines for value in line.values if value is not None), default=0.0)

    @property
    def top(self) -> float:
        """Where the chart ends above."""
        return ceiling(self.highest)

    @property
    def top_label(self) -> str:
        """The round number up there, without the decimals of a measured one."""
        return self.show(self.top).replace(".0 ", " ") if self.unit == "s" else f"{self.top:g}"


def ceiling(value: float) -> float:
    """The next round number: where the chart ends above."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next((nice * unit for nice in _NICE if nice * unit >= value * 0.999), value)


def draw(chart: Chart) -> Markup:
    """The chart as an SVG element, with its values for the script that shows them under the pointer."""
    top = chart.top
    count = max(len(line.values) for line in chart.lines)
    body = [
        Markup('<line class="grid" x1="0" x2="{}" y1="{}" y2="{}"/>').format(WIDTH, y, y)
        for y in (TOP, (TOP + FLOOR) / 2, FLOOR)
    ]
    for number, line in enumerate(chart.lines):
        body += _line(line.values, top, count, number)
    body.append(Markup('<line class="guide" x1="-9" x2="-9" y1="{}" y2="{}"/>').format(TOP, FLOOR))
    summary = f"{chart.title}: now {chart.show(chart.latest)} {chart.unit}, highest {chart.show(chart.highest)}"
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}" '
        'data-start="{:.0f}" data-step="{:g}" data-unit="{}" data-lines="{}" data-top="{:g}">{}</svg>'
    ).format(
        WIDTH, HEIGHT, summary, chart.start, chart.step, chart.unit,
        ";".join(f"{line.name}={','.join(_short(value) for value in line.values)}" for line in chart.lines),
        top, Markup("").join(body),
    )  # fmt: skip


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _place(at: int, value: float, top: float, count: int) -> str:
    x = WIDTH * at / max(1, count - 1)
    return f"{x:.1f},{FLOOR - (FLOOR - TOP) * min(1.0, value / top):.1f}"


def _line(values: Values, top: float, count: int, number: int) -> list[Markup]:
    """Each stretch without a gap is a line of its own; the first line of a chart is filled."""
    made: list[Markup] = []
    stretch: list[tuple[int, float]] = []
    for at, value in enumerate([*values, None]):
        if value is not None:
            stretch.append((at, value))
            continue
        if not stretch:
            continue
        path = " ".join(_place(where, what, top, count) for where, what in stretch)
        if number == 0 and len(stretch) > 1:
            first, last = (f"{WIDTH * end[0] / max(1, count - 1):.1f},{FLOOR}" for end in (stretch[0], stretch[-1]))
            made.append(Markup('<polygon class="area a{}" points="{} {} {}"/>').format(number, first, path, last))
        if len(stretch) > 1:
            made.append(
                Markup('<polyline class="line l{}" points="{}" vector-effect="non-scaling-stroke"/>').format(
                    number, path
                )
            )
        else:  # a value between two gaps would not be seen as a line
            x, y = path.split(",")
            made.append(Markup('<circle class="dot l{}" cx="{}" cy="{}" r="1.5"/>').format(number, x, y))
        stretch = []
    return made


def span_labels(chart: Chart) -> tuple[str, str]:
    """From when to when, for below the chart."""
    last = chart.start + chart.step * max(0, max(len(line.values) for line in chart.lines) - 1)
    form = "%H:%M" if last - chart.start < 86_400 else "%d %b %H:%M"
    return tuple(datetime.fromtimestamp(at, UTC).strftime(form) for at in (chart.start, last))  # type: ignore[return-value]


def bar(share: float, level: str = "") -> Markup:
    """How full something is. Decoration: the numbers stand beside it."""
    part = max(0.0, min(1.0, share)) * 100
    return Markup(
        '<svg class="bar {}" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="rest" width="100" height="6"/><rect class="part" width="{:.1f}" height="6"/></svg>'
    ).format(level, part)


def fill_level(share: float) -> str:
    """The class of a bar: the alert of a buffer comes at four fifths."""
    return "full" if share >= 0.98 else "high" if share >= 0.8 else ""
