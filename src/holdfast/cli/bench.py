"""`holdfast bench`: a quick look at what this server and this network give. Not the project's benchmark."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

import typer

from holdfast import Holdfast
from holdfast.cli.options import Json, Url
from holdfast.cli.output import console, plain, print_json, progress, show
from holdfast.cli.running import client, run

NOTE = (
    "A quick look from one process, with whatever else runs here: for a feeling, not for a report. "
    "The project's own benchmark is `make bench` in its repository."
)
OWN = "holdfast-bench"
"""The names that it uses: always the same, so that repeating it leaves no more behind."""
KEPT = 100_000
"""Latencies that are kept of one measurement."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of one measurement."""

    what: str
    ops: int
    seconds: float
    p50: float
    """Seconds, like the next."""
    p99: float

    @property
    def rate(self) -> float:
        return self.ops / self.seconds if self.seconds else 0.0


def bench(
    seconds: Annotated[float, typer.Option(min=0.1, max=60, help="For each of the four measurements.")] = 2.0,
    callers: Annotated[int, typer.Option(min=1, max=1000, help="So many at once.")] = 20,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Measure round trips, lock cycles, append+take+ack and runs, for a few seconds each.

    A quick look, not the project's benchmark. It writes under the name holdfast-bench; what it
    leaves ends by itself."""
    run(_bench(seconds, callers, url, as_json))


async def _bench(seconds: float, callers: int, url: str | None, as_json: bool) -> None:
    async with client(url) as hf:
        with progress() as bar:
            found = [
                await _measure(name, make(hf), seconds, callers)
                for name, make in bar.track(KINDS.items(), description="bench")
            ]
        where = repr(hf)
    if as_json:
        rows = [
            {"what": one.what, "ops": one.ops, "ops_per_second": round(one.rate, 1), "p50": one.p50, "p99": one.p99}
            for one in found
        ]
        print_json({"callers": callers, "seconds": seconds, "measured": rows, "note": NOTE})
        return
    print(f"{plain(where)}, {callers} callers at once")
    heads = ("what", "ops/s>", "half within>", "99 % within>")
    show(heads, [(one.what, f"{one.rate:,.0f}", _ms(one.p50), _ms(one.p99)) for one in found])
    console().print(NOTE)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"


Caller = Callable[[int], Awaitable[None]]
"""One operation of the caller with this number."""


async def _measure(what: str, once: Caller, seconds: float, callers: int) -> Measured:
    took: list[float] = []
    count = 0
    await asyncio.gather(*(once(number) for number in range(callers)))  # scripts are loaded, connections made
    started = time.monotonic()
    until = started + seconds

    async def caller(number: int) -> None:
        nonlocal count
        while (begun := time.monotonic()) < until:
            await once(number)
            count += 1
            if len(took) < KEPT:
                took.append(time.monotonic() - begun)

    await asyncio.gather(*(caller(number) for number in range(callers)))
    spent = time.monotonic() - started
    took.sort()
    return Measured(what, count, spent, _quantile(took, 0.5), _quantile(took, 0.99))


def _quantile(took: list[float], part: float) -> float:
    return took[max(0, math.ceil(part * len(took)) - 1)] if took else 0.0


# -- what is measured -------------------------------------------------------------------------------------------------


def _round_trip(hf: Holdfast) -> Caller:
    async def once(number: int) -> None:
        await hf.ping()

    return once


def _lock(hf: Holdfast) -> Caller:
    mine = f"{OWN}:{secrets.token_hex(4)}"  # nobody else's, or it would measure waiting

    async def once(number: int) -> None:
        async with hf.lock(f"{mine}:{number}", ttl=10):
            pass

    return once


def _buffer(hf: Holdfast) -> Caller:
    buffer, mine = hf.buffer(OWN, ttl=60), secrets.token_hex(4)

    async def once(number: int) -> None:
        user = f"{mine}-{number}"
        await buffer.append(user, {"text": "x" * 100})
        batch = await buffer.take(user)
        if batch is not None:
            await batch.ack()

    return once


def _run(hf: Holdfast) -> Caller:
    runs = hf.runs(OWN, retention=5.0)

    async def once(number: int) -> None:
        async with await runs.claim(secrets.token_hex(8)) as active:
            await active.emit({"token": "x"})

    return once


KINDS: dict[str, Callable[[Holdfast], Caller]] = {
    "round trip": _round_trip,
    "lock and release": _lock,
    "append, take, acknowledge": _buffer,
    "claim, emit, end a run": _run,
}
