"""How `holdfast top` looks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from holdfast.cli.output import cell, moment, plain, span, table
from holdfast.cli.top import RATES, Frame

BARS = "▁▂▃▄▅▆▇█"
TIMES = {"granted": ("wait", "hold"), "absorbed": ("absorb",), "runs": ("run",), "told": ("deliver",)}
BAD = ("lost", "dropped")
PROCESSES = 15


def picture(frame: Frame) -> RenderableType:
    """One frame, as Rich draws it. What processes and users named is text, never markup."""
    apart = [(part, Text("")) for part in _parts(frame)]
    return Group(*(line for pair in apart for line in pair))


def _parts(frame: Frame) -> Iterator[RenderableType]:
    alive = [one for one in frame.processes if one.alive]
    gone = len(frame.processes) - len(alive)
    head = Text(f"holdfast  {moment(frame.at)}  {len(alive)} process(es) alive", "bold")
    if gone:
        head.append(f", {gone} gone without a word", "bold red")
    head.append(f"  round trip {frame.round_trip * 1000:.1f} ms", "dim")
    head.append(
        f"\nheld now: {sum(one.leases for one in alive)} leases, {sum(one.batches for one in alive)} batches, "
        f"{sum(one.runs for one in alive)} runs",
        "not bold",
    )
    yield head
    yield table(("", "per second>", "last ten minutes", "took (half, 99 %)"), [_rate(frame, name) for name in RATES])
    if frame.buffers:
        heads = ("buffer", "users>", "due>", "oldest>", "idle workers>", "dead letters>", "absorbed>")
        yield table(heads, map(_buffer, frame.buffers))
    if frame.runs:
        states = [name for name in frame.runs[0] if name != "name"]
        rows = [(one["name"], *(_number(one[s], s == "failed") for s in states)) for one in frame.runs]
        yield table(("runs", *(f"{state}>" for state in states)), rows)
    if frame.monitors:
        told = ("monitor", "changes in the log>", "waiting>", "failing>", "dead letters>")
        yield table(told, map(_monitor, frame.monitors))
    yield table(
        ("process", "pid>", "up>", "works on", "leases>", "batches>", "runs>"),
        [_process(frame, one) for one in frame.processes[:PROCESSES]],
    )
    if len(frame.processes) > PROCESSES:
        yield Text(f"and {len(frame.processes) - PROCESSES} more", "dim")
    if frame.losses:
        yield Text("since ever: " + ", ".join(f"{plain(name)} {n}" for name, n in frame.losses.items()), "yellow")


def _rate(frame: Frame, name: str) -> tuple[object, ...]:
    now, style = frame.rates[name], "red" if name in BAD and frame.rates[name] else ""
    took = [
        f"{one} {span_short(frame.times[one].p50)}, {span_short(frame.times[one].p99)}"
        for one in TIMES.get(name, ())
        if one in frame.times
    ]
    return (RATES[name], Text(f"{now:.1f}", style), Text(spark(frame.history[name]), style), "; ".join(took))


def span_short(seconds: float) -> str:
    return f"{seconds * 1000:g} ms" if seconds < 1 else f"{seconds:g} s"


def spark(values: Sequence[float], width: int = 60) -> str:
    """The last values as a row of bars; a space is nothing at all."""
    shown = list(values)[-width:]
    most = max(shown, default=0.0)
    return "".join(BARS[min(7, int(one / most * 7.999))] if one else " " for one in shown) if most else ""


def _number(value: Any, bad: bool) -> Text:
    return Text(str(value), "red" if bad and value else "")


def _buffer(one: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        one["name"], one["users"], one["due"], span(one["oldest"]), one["idle_workers"],
        _number(one["dead_letters"], True), one["absorbed"],
    )  # fmt: skip


def _monitor(one: Mapping[str, Any]) -> tuple[object, ...]:
    bad = (_number(one["failing"], True), _number(one["dead_letters"], True))
    return (one["name"], one["changes"], one["waiting"], *bad)


def _process(frame: Frame, one: Any) -> tuple[object, ...]:
    name = cell(f"{one.host} {one.label}".strip())
    if not one.alive:
        name.append(f"  gone, last heard of {span(frame.at - one.seen)} ago", "red")
    works = ", ".join(map(plain, one.works)) or "-"
    return (name, one.pid, span(frame.at - one.since), works, one.leases, one.batches, one.runs)
