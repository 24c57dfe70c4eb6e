"""Reads the events of every run, several at once, leaving and coming back with the last id it saw."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import time
from pathlib import Path

from chaos.history.journal import Journal, wait_to_begin
from chaos.traffic.roles import collections, role
from holdfast import Holdfast, Indeterminate, RunGone, Unavailable
from holdfast.runs.runs import Runs

VIEWS = 2
"""Readers of a run in one process: they share a subscription, and the second one comes later."""
GIVE_UP = 30.0
"""A run that is gone for so long was lost in a failover."""


class View:
    """One reader of one run, and how far it is."""

    def __init__(self, runs: Runs, run: str, by: str, draw: random.Random, journal: Journal) -> None:
        self._runs = runs
        self._run = run
        self._by = by
        self._draw = draw
        self._journal = journal
        self._last: str | None = None
        self._over = False

    async def read(self) -> None:
        gone_since = 0.0
        while not self._over:
            try:
                await self._visit()
                gone_since = 0.0
            except RunGone:
                gone_since = gone_since or time.monotonic()
                if time.monotonic() - gone_since > GIVE_UP:
                    return
                await asyncio.sleep(0.1)
            except (Unavailable, Indeterminate):
                await asyncio.sleep(0.1)
            await asyncio.sleep(self._draw.choice((0.0, 0.05, 0.4)))

    async def _visit(self) -> None:
        """Read for a while, until enough was seen or nothing came."""
        most = self._draw.choice((1, 2, 5, 20, 1000))
        self._journal.write("visit", self._run, by=self._by, after=self._last)
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(self._draw.choice((0.05, 0.5, 3.0))),
                contextlib.aclosing(self._runs.events(self._run, self._last)) as events,
            ):
                async for event in events:
                    self._journal.write("seen", self._run, by=self._by, id=event.id, kind=event.kind, data=event.data)
                    self._last, self._over, most = event.id, event.kind == "end", most - 1
                    if most == 0:
                        break


async def main(url: str, folder: Path, number: int, schedule: int, count: int, rate: float) -> None:
    journal = Journal(folder, "reader")
    async with Holdfast(url, call_timeout=0.5, retry_for=10.0, connect_timeout=1.0) as hf:
        runs = collections(hf)
        begin = await wait_to_begin(folder, journal)

        async def view(at: int, which: int) -> None:
            one = role(schedule, at)
            draw = random.Random(f"{schedule}.{number}.{at}.{which}")
            await asyncio.sleep(begin + at / rate + which * draw.uniform(0.0, 2.0) - time.time())
            await View(runs[one.collection], one.id, f"{number}.{which}", draw, journal).read()

        await asyncio.gather(*(view(at, which) for at in range(count) for which in range(VIEWS)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    for name, kind in (("number", int), ("schedule", int), ("count", int), ("rate", float)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    options = parser.parse_args()
    asyncio.run(
        main(
            options.url, options.folder, options.number, options.schedule, options.count, options.rate,
        )
    )  # fmt: skip
