"""Pictures of how a number went: an SVG that stands alone, and a line of text for the shell. No I/O."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, NamedTuple

from holdfast.engine.limits import check_count
from holdfast.errors import ConfigurationError
from holdfast.monitor.diff import path_of, value_at
from holdfast.monitor.record import Snapshot

_BARS = "▁▂▃▄▅▆▇█"
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_STEPS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30,
    *(n * _MINUTE for n in (1, 2, 5, 10, 15, 30)), *(n * _HOUR for n in (1, 2, 3, 6, 12)),
    *(n * _DAY for n in (1, 2, 4, 7, 14)),
)  # fmt: skip
_MONTH_STEPS = (1, 2, 3, 6, *(12 * n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)))
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"))
_LARGEST, _SMALLEST = 1e300, 1e-290  # beyond, the arithmetic of axes leaves what a float can hold
_MOST_DOTS = 60
_TOP, _BOTTOM, _RIGHT, _EDGE = 40, 44, 18, 16

# Presentation attributes are the light picture: they also hold where a page allows no style sheet.
_DARK = (
    "@media (prefers-color-scheme:dark){.hf-plot .back{fill:#15181e}.hf-plot .grid{stroke:#2a2f39}"
    ".hf-plot .axis{stroke:#4a5261}.hf-plot .line{stroke:#7cabff}.hf-plot .dot{fill:#7cabff}"
    ".hf-plot .name{fill:#e9ecf1}.hf-plot .text{fill:#a2abba}}"
)
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # by XML


class _Axis(NamedTuple):
    """From numbers to the picture."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


class _Tick(NamedTuple):
    value: float
    label: str
    below: str = ""


Point = tuple[float, float | None]
"""A time, and what was then; None for nothing that is a number."""


def plot(
    snapshots: Iterable[Snapshot], field: str, *, width: int = 720, height: int = 240, title: str | None = None
) -> str:
    """A stand-alone SVG of a number over time, in any order of snapshots. A value holds until the next one.

    `field` is a name or a path such as `price.usd` or `items[0].price`; "" is the state itself. Where it is missing or
    no number, there is a gap. Light or dark is what the reader prefers. It has no script and needs nothing from
    outside, and any text may be in it. With nothing to draw the picture says so."""
    check_count("width", width, 200, 4000)
    check_count("height", height, 120, 4000)
    points = _points(snapshots, field)
    numbers = [value for _, value in points if value is not None]
    name = title if title is not None else field or "state"
    if not numbers:
        why = f"“{field}” is a number in no snapshot" if points else "there are no snapshots"
        body = [_text(width / 2, height / 2 + 4, _cut(f"Nothing to draw: {why}", width - 2 * _EDGE), size=12)]
        return _picture(width, height, name, "", f"Nothing to draw: {why}", body)
    last = "" if points[-1][1] is None else f"last {_plainly(points[-1][1])}"
    told = f"{len(numbers)} values, lowest {_plainly(min(numbers))}, highest {_plainly(max(numbers))}"
    return _picture(width, height, name, last, f"{told}, {last}" if last else told, _chart(points, width, height))


def spark(values: Iterable[Any]) -> str:
    """One character for each value, low to high, the oldest first as they come; a blank for what is no number."""
    numbers = [_number(value) for value in values]
    known = [number for number in numbers if number is not None]
    if not known:
        return " " * len(numbers)
    low, high = min(known), max(known)
    if low == high:
        return "".join(" " if number is None else _BARS[3] for number in numbers)
    scale = _Axis(low, high, 0, len(_BARS) - 1)
    return "".join(" " if number is None else _BARS[round(scale.at(number))] for number in numbers)


# -- numbers ----------------------------------------------------------------------------------------------------------


def _points(snapshots: Iterable[Snapshot], field: str) -> list[Point]:
    try:
        path = path_of(field)
    except ConfigurationError:
        path = (field,)
    found = [(shot.observed_at, shot.id, shot.state) for shot in snapshots if _number(shot.observed_at) is not None]
    points: list[Point] = []
    for at, _, state in sorted(found, key=lambda shot: shot[:2]):
        exact = isinstance(state, dict) and field in state  # a name may look like a path
        points.append((float(at), _number(state[field] if exact else value_at(state, path))))
    return points


def _number(value: Any) -> float | None:
    """As it can be drawn; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -_LARGEST <= value <= _LARGEST:
        return None
    return 0.0 if -_SMALLEST < value < _SMALLEST else float(value)


def _runs(points: Sequence[Point], end: float) -> Iterator[tuple[list[tuple[float, float]], float]]:
    """Values without a gap between them, and until when the last one holds."""
    run: list[tuple[float, float]] = []
    for at, value in points:
        if value is not None:
            run.append((at, value))
        elif run:
            yield run, at
            run = []
    if run:
        yield run, end


# -- axes -------------------------------------------------------------------------------------------------------------


def _value_ticks(low: float, high: float, most: int) -> tuple[list[_Tick], float, float]:
    """Round numbers that enclose all values, and the ends of the axis."""
    size = max(abs(low), abs(high))
    if high - low < size * 1e-9 or low == high:  # nothing that one could see: one value in the middle
        pad = size * 0.1 or 1.0
        low, high = low - pad, high + pad
    elif 0 <= low <= high * 0.4:
        low = 0.0
    raw = (high - low) / most
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next((n * unit for n in (1, 2, 5) if n * unit >= raw), 10 * unit)
    first, end = math.floor(low / step), math.ceil(high / step)
    size = max(abs(first), abs(end)) * step
    ticks = [_Tick(n * step, _labelled(n * step, step, size)) for n in range(first, end + 1)]
    return ticks, first * step, end * step


def _labelled(value: float, step: float, largest: float) -> str:
    if largest >= 1e15 or largest < 1e-4:
        return f"{value:.4g}"
    unit, sign = next(((unit, sign) for unit, sign in _UNITS if largest >= unit), (1.0, ""))
    digits = max(0, -math.floor(math.log10(step / unit) + 1e-9))
    return f"{value / unit + 0.0:,.{digits}f}{sign if value else ''}"


def _plainly(value: float) -> str:
    """Six digits or all before the point, without an exponent where one can do without."""
    size = abs(value)
    if value and not 1e-4 <= size < 1e15:
        return f"{value:.6g}"
    digits = max(0, 5 - math.floor(math.log10(size))) if value else 0
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text


def _time_ticks(start: float, end: float, most: int) -> list[_Tick]:
    try:
        datetime.fromtimestamp(start, UTC), datetime.fromtimestamp(end, UTC)
    except (ValueError, OverflowError, OSError):  # no year has it
        return [tick for tick in _value_ticks(start, end, most)[0] if start <= tick.value <= end]
    raw = (end - start) / most
    step = next((step for step in _STEPS if step >= raw), None)
    if step is None:
        return _month_ticks(start, end, raw)
    ticks, before = [], None
    for number in range(math.ceil(start / step), math.floor(end / step) + 1):
        time = datetime.fromtimestamp(number * step, UTC)
        if step < _DAY:
            shown = f"{time:%H:%M}" if step >= _MINUTE else f"{time:%H:%M:%S}"
            label, context = f"{shown}.{time.microsecond // 1000:03}" if step < 1 else shown, f"{time:%Y-%m-%d}"
        else:
            label, context = f"{_MONTHS[time.month - 1]} {time.day}", f"{time.year}"
        ticks.append(_Tick(number * step, label, _below(context, before)))
        before = context
    return ticks


def _month_ticks(start: float, end: float, raw: float) -> list[_Tick]:
    months = next((n for n in _MONTH_STEPS if n * 30.4 * _DAY >= raw), _MONTH_STEPS[-1])
    first, last = (time.year * 12 + time.month - 1 for time in (datetime.fromtimestamp(t, UTC) for t in (start, end)))
    ticks, before = [], None
    for number in range(max(12, -(-first // months) * months), last + 1, months):
        time = datetime(number // 12, number % 12 + 1, 1, tzinfo=UTC)
        if time.timestamp() < start:
            continue
        label, context = (f"{time.year}", "") if months % 12 == 0 else (_MONTHS[time.month - 1], f"{time.year}")
        ticks.append(_Tick(time.timestamp(), label, _below(context, before)))
        before = context
    return ticks


def _below(context: str, before: str | None) -> str:
    """What stands under the first tick, and where it is another day or year."""
    return f"{context} UTC".strip() if before is None else context if context != before else ""


# -- drawing ----------------------------------------------------------------------------------------------------------


def _chart(points: Sequence[Point], width: int, height: int) -> list[str]:
    numbers = [value for _, value in points if value is not None]
    top, bottom = _TOP, height - _BOTTOM
    levels, low, high = _value_ticks(min(numbers), max(numbers), max(1, (bottom - top) // 36))
    left = round(_EDGE + max(_wide(tick.label) for tick in levels) + 8)
    start, end = points[0][0], points[-1][0]
    size = max(abs(start), abs(end))
    if end - start < max(0.01, size * 1e-12):  # one moment, in the middle
        pad = max(_MINUTE, size * 1e-9)
        start, end = start - pad, end + pad
    else:
        end += (end - start) * 0.03  # the last value holds too
    y = _Axis(low, high, bottom, top)
    x = _Axis(start, end, left, width - _RIGHT)
    drawn = []
    for tick in levels:
        at = y.at(tick.value)
        drawn.append(f'<path class="grid" stroke="#e6e9ef" d="M{left} {at:g}H{width - _RIGHT}"/>')
        drawn.append(_text(left - 8, at + 4, tick.label, anchor="end"))
    most = max(1, (width - left - _RIGHT) // 105)
    for tick in next(filter(None, (_time_ticks(start, end, most * n) for n in (1, 2, 3))), ()):
        at = x.at(tick.value)
        drawn.append(f'<path class="axis" stroke="#b9c0cc" d="M{at:g} {bottom}v5"/>')
        drawn += [_below_axis(at, bottom + down, text, width) for down, text in ((18, tick.label), (33, tick.below))]
    drawn.append(f'<path class="axis" stroke="#b9c0cc" d="M{left} {bottom}H{width - _RIGHT}"/>')
    return [*filter(None, drawn), *_line(points, x, y)]


def _line(points: Sequence[Point], x: _Axis, y: _Axis) -> list[str]:
    steps, dots = [], []
    few = len(points) <= _MOST_DOTS
    for run, end in _runs(points, x.high):
        at, level = x.at(run[0][0]), y.at(run[0][1])
        steps.append(f"M{at:g} {level:g}")
        for time, value in run[1:]:
            if (here := x.at(time)) != at:
                steps.append(f"H{here:g}")
            if (there := y.at(value)) != level:
                steps.append(f"V{there:g}")
            at, level = here, there
        if (until := x.at(end)) != at:
            steps.append(f"H{until:g}")
        alone = len(run) == 1 and until - at < 2  # too short to be seen
        if few or alone:
            dots += [(x.at(time), y.at(value)) for time, value in run]
    line = (
        '<path class="line" fill="none" stroke="#2463eb" stroke-width="1.75" stroke-linejoin="round" '
        f'stroke-linecap="round" d="{"".join(steps)}"/>'
    )
    return [line, *(f'<circle class="dot" fill="#2463eb" cx="{a:g}" cy="{b:g}" r="2.5"/>' for a, b in dots)]


def _picture(width: int, height: int, name: str, aside: str, told: str, body: Sequence[str]) -> str:
    room = width - 2 * _EDGE - (_wide(aside) + 16 if aside else 0)
    head = [
        f'<rect class="back" fill="#fff" width="{width}" height="{height}" rx="8"/>',
        _text(_EDGE, 24, _cut(name, room, 7.2), anchor="start", size=13, kind="name", colour="#161b26", weight=600),
        _text(width - _RIGHT, 24, aside, anchor="end"),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="hf-plot" role="img" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="system-ui,-apple-system,Segoe UI,Roboto,sans-serif">'
        f"<title>{_safe(name)}</title><desc>{_safe(told)}</desc><style>{_DARK}</style>"
        f"{''.join([*head, *body])}</svg>"
    )


def _below_axis(at: float, down: float, text: str, width: int) -> str:
    half = _wide(text) / 2 + 4
    return _text(min(max(at, half), width - half), down, text)


def _text(
    x: float, y: float, text: str, *, anchor: str = "middle", size: int = 11, kind: str = "text",
    colour: str = "#5b6472", weight: int = 400,
) -> str:  # fmt: skip
    if not text:
        return ""
    return (
        f'<text class="{kind}" fill="{colour}" x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" '
        f'font-weight="{weight}">{_safe(text)}</text>'
    )


def _safe(text: str) -> str:
    return escape(_FORBIDDEN.sub("\ufffd", text))


def _wide(text: str, each: float = 6.3) -> float:
    """About so many pixels: where the fonts of the reader are not known, more than less."""
    return sum(each * (1.8 if unicodedata.east_asian_width(sign) in "WF" else 1) for sign in text)


def _cut(text: str, room: float, each: float = 6.8) -> str:
    if _wide(text, each) <= room:
        return text
    text = text[: int(room / each)]
    while text and _wide(text, each) > room - each:
        text = text[:-1]
    return f"{text}…"
