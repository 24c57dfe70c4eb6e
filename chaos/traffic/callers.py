"""Starts runs at a steady rate, or stops some of them at odd moments, and writes down what it was told."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from chaos.history.journal import Journal, wait_to_begin
from chaos.traffic.roles import Role, collections, role
from holdfast import Holdfast, Indeterminate, RunGone, Unavailable
from holdfast.runs.runs import Runs


async def start(runs: Runs, one: Role, journal: Journal) -> None:
    """Again until it is answered: that is safe, and the run is the same."""
    while True:
        try:
            found = await runs.start(one.id, one.input, key=one.key, conflict=one.conflict)
        except (Unavailable, Indeterminate):
            continue
        assert found.id == one.id
        journal.write("started", one.id, state=found.state)
        return


async def stop(runs: Runs, one: Role, journal: Journal) -> None:
    journal.write("asked", one.id)
    try:
        found = await runs.stop(one.id, "chaos")
        journal.write("stop", one.id, state=found.state)
    except RunGone:
        journal.write("stop", one.id, state="gone")
    except (Unavailable, Indeterminate):
        journal.write("stop", one.id, state="unknown")


async def main(
    url: str, folder: Path, what: str, do: Callable[[Runs, Role, Journal], Awaitable[None]],
    todo: list[tuple[float, Role]],
) -> None:  # fmt: skip
    journal = Journal(folder, what)
    async with Holdfast(url, call_timeout=0.5, retry_for=15.0, connect_timeout=1.0) as hf:
        runs = collections(hf)
        begin = await wait_to_begin(folder, journal)

        async def at(moment: float, one: Role) -> None:
            await asyncio.sleep(begin + moment - time.time())
            await do(runs[one.collection], one, journal)

        await asyncio.gather(*(at(moment, one) for moment, one in todo))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("start", "stop"))
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    for name, kind in (("schedule", int), ("count", int), ("rate", float)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    options = parser.parse_args()
    plan = [(number / options.rate, role(options.schedule, number)) for number in range(options.count)]
    if options.what == "stop":
        plan = [(moment + one.stop, one) for moment, one in plan if one.stop is not None]
    asyncio.run(main(options.url, options.folder, options.what, start if options.what == "start" else stop, plan))
