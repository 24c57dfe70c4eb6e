"""Runs for pitfalls: clients and workers of a world, in which a bug may have been put back."""

from __future__ import annotations

import asyncio
from typing import Any

from run_crew import Hand, ready

from holdfast import Event, Holdfast, RunActive
from holdfast.runs.runs import Runs
from support.mutants import World


async def hand(world: World, handler: Any, *, lease: float = 30.0, drain: float = 0.3, **options: Any) -> Hand:
    """A client that works."""
    hf = await world.client(sweep=600.0, drain=drain)
    made = Hand(hf, hf.runs("agent", lease=lease, conflict="queue"))
    hf.runner(made.agent, **{"stop_grace": 1.0, **options})(handler)
    made.working = world.start(hf.work())
    await ready(made, world.redis())
    return made


async def agent(world: World, **options: Any) -> Runs:
    return (await world.client()).runs("agent", **options)


async def dead(runs: Runs, run_id: str = "r", **options: Any) -> Any:
    """Claimed by somebody who never comes back."""
    run = await runs.claim(run_id, lease=0.2, **options)
    run._given.hold.abandoned = True
    return run


async def state(runs: Runs, run_id: str = "r") -> str:
    return (await runs.get(run_id)).state


async def claimed(runs: Runs, run_id: str = "r", **options: Any) -> Any:
    try:
        return await runs.claim(run_id, lease=30, **options)
    except RunActive:
        return None


async def opened(world: World, url: str | None = None, **options: Any) -> tuple[Holdfast, Runs]:
    hf = await world.client(url)
    return hf, hf.runs("agent", **{"lease": 30.0, **options})


def data_of(events: list[Event]) -> list[Any]:
    return [event.data for event in events if event.kind == "data"]


async def read(runs: Runs, run_id: str = "r", *, why: str, within: float = 3.0) -> list[Event]:
    """All events up to the end, or the check fails with this message."""
    events: list[Event] = []
    try:
        async with asyncio.timeout(within):
            async for event in runs.events(run_id):
                events.append(event)
    except TimeoutError:
        raise AssertionError(f"{why}; it has {len(events)} events") from None
    return events
