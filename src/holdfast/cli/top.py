"""`holdfast top`: what the fleet does right now, in a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from holdfast import Holdfast, Unavailable
from holdfast.cli.options import Json, Url
from holdfast.cli.output import console, plain, print_json
from holdfast.cli.running import client, run, server_time

SHOWN = 20
"""Collections of a kind, those used last; each costs a look at its numbers."""
SPAN = 600.0
"""Seconds of which the small pictures are."""
RATES = {
    "granted": "leases granted", "absorbed": "messages absorbed", "runs": "runs ended", "told": "changes told",
    "lost": "leases lost", "dropped": "dropped",
}  # fmt: skip
COUNTED = {
    "granted": ("granted",), "absorbed": ("absorbed",), "told": ("told: accepted",), "dropped": ("dropped",),
    "runs": ("runs_completed", "runs_failed", "runs_stopped"), "lost": ("lost", "lost_batches", "lost_runs"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Frame:
    """All that is shown at one moment."""

    at: float
    """The server's time."""
    round_trip: float
    processes: Sequence[Any]
    rates: Mapping[str, float]
    """Of the last piece of time that is over, each second."""
    history: Mapping[str, Sequence[float]]
    """The same for each piece of time, oldest first."""
    times: Mapping[str, Any]
    buffers: Sequence[Mapping[str, Any]] = ()
    runs: Sequence[Mapping[str, Any]] = ()
    monitors: Sequence[Mapping[str, Any]] = ()
    losses: Mapping[str, int] = field(default_factory=dict)
    """Since ever: leases lost and what was dropped, by reason."""


def top(
    every: Annotated[float, typer.Option(min=0.2, max=3600, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one picture and end.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """The fleet, live: throughput, leases, backlog, runs by state, losses, processes. Ctrl-C ends it.

    With --json, and where there is no terminal, it looks once."""
    run(_top(every, once or as_json or not sys.stdout.isatty(), url, as_json))


async def _top(every: float, once: bool, url: str | None, as_json: bool) -> None:
    from holdfast.cli.top_view import picture

    async with client(url) as hf:
        if not once:
            await _live(hf, every)
            return
        frame = await look(hf)
    if as_json:
        print_json(frame)
    else:
        console().print(picture(frame))


async def _live(hf: Holdfast, every: float) -> None:
    from rich.live import Live
    from rich.text import Text

    from holdfast.cli.top_view import picture

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with Live(Text("looking …"), console=console(), screen=True, auto_refresh=False) as live:
        while not stop.is_set():
            looking = asyncio.create_task(look(hf))
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait([looking, stopped], return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if not looking.done():
                looking.cancel()
            try:
                live.update(picture(await looking), refresh=True)
            except asyncio.CancelledError:
                break
            except Unavailable as error:  # it may come back, and whoever looks on wants to see it
                live.update(Text(f"{plain(error)}\ntrying again …"), refresh=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every):
                    await stop.wait()


# -- looking --------------------------------------------------------------------------------------------------------


async def look(hf: Holdfast) -> Frame:
    """One moment. Nothing is scanned: a few small scripts for each collection."""
    round_trip, at = await hf.ping(), await server_time(hf)
    named = sorted(await hf.fleet.names(), key=lambda one: -one.seen)
    series = await hf.fleet.series(SPAN)
    over = series.slots[:-1] or series.slots
    history = {
        name: [sum(slot.counts.get(one, 0) for one in counted) / series.step for slot in over]
        for name, counted in COUNTED.items()
    }
    totals = await hf.fleet.totals()

    def some(kind: str) -> list[str]:
        return [one.name for one in named if one.kind == kind][:SHOWN]

    return Frame(
        at=at,
        round_trip=round_trip,
        processes=await hf.fleet.processes(),
        rates={name: values[-1] if values else 0.0 for name, values in history.items()},
        history=history,
        times=_latest(over),
        buffers=[await _buffer(hf, name) for name in some("buffer")],
        runs=[{"name": name, **await hf.runs(name).totals()} for name in some("runs")],
        monitors=[await _monitor(hf, name) for name in some("monitor")],
        losses={name: n for name, n in sorted(totals.items()) if name.startswith(("lost", "dropped")) and n},
    )


def _latest(slots: Sequence[Any]) -> dict[str, Any]:
    """How long things took: of each the newest numbers that there are."""
    found: dict[str, Any] = {}
    for slot in slots:
        found.update(slot.times)
    return found


async def _buffer(hf: Holdfast, name: str) -> dict[str, Any]:
    buffer = hf.buffer(name)
    totals, oldest = await buffer.totals(), await buffer.oldest(1)
    return {
        "name": name, "users": totals.users, "due": totals.due, "oldest": oldest[0].age if oldest else None,
        "idle_workers": totals.idle_workers, "dead_letters": totals.dead_letters,
        "absorbed": totals.counts.get("absorbed", 0),
    }  # fmt: skip


async def _monitor(hf: Holdfast, name: str) -> dict[str, Any]:
    status = await hf.monitor(name).status()
    return {
        "name": name, "changes": status.changes, "waiting": sum(status.waiting.values()),
        "failing": len(status.failing), "dead_letters": status.dead_letters,
    }  # fmt: skip
