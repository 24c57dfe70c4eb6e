"""Runs: how many in which state, and one of them live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from holdfast import Event, Run, Runs
from holdfast.node.dashboard.asking import Action, Ask, Given, Reveal
from holdfast.node.dashboard.site import Page, Rows, count_of, goto, measured, named, piece, root_of
from holdfast.node.dashboard.text import Id, shown, token
from holdfast.node.state import node_of

PAGE, MOST_PAGES = 50, 200
"""At most so many pages: a listing reads everything before it, and ten thousand is its limit."""
LIVE_PAGES = 2
STATES = ("queued", "running", "stopping", "completed", "failed", "stopped")
MOST_COLLECTIONS = 100
STORED = 1000
"""Events that are read before a page is drawn; the live page goes on from there."""
SHOWN = 200
PATIENCE = 0.3
GATHER = 0.1
"""Seconds for which events are gathered: tokens come by the hundred."""
MOST_AT_ONCE = 200


async def look(request: Request) -> dict[str, Any]:
    """Every collection with its totals, as the node measured them last."""
    found, left_out = await measured(request, "runs", MOST_COLLECTIONS)
    return {
        "page_title": "Runs", "now": await node_of(request).now(), "states": STATES, "left_out": left_out,
        "collections": found,
    }  # fmt: skip


async def find(request: Request) -> Response:
    """From the search field to the run of exactly that id."""
    name, run_id = named(request, "runs"), request.query_params.get("run", "")
    if not run_id:
        return goto(request, f"{root_of(request)}/runs/{token(name)}", "Type the whole id of a run.")
    return goto(request, _path(request, name, run_id))


def _path(request: Request, name: str, run_id: Id) -> str:
    return f"{root_of(request)}/runs/{token(name)}/{token(run_id)}"


async def look_at_one(request: Request) -> dict[str, Any]:
    """A collection: runs of a state or a key, the latest first."""
    node, name = node_of(request), named(request, "runs")
    query = request.query_params
    state, key, stuck = query.get("state", ""), query.get("key", ""), query.get("stuck") == "1"
    state = state if state in STATES else ""
    number = count_of(request, "page", 1, 1, MOST_PAGES)
    runs = node.runs(name)
    # One more than are shown says whether there is a next page.
    found = await runs.list(state=state or None, key=key or None, stuck=stuck, count=min(10_000, number * PAGE + 1))
    return {
        "page_title": shown(name), "now": await node.now(), "name": name, "states": STATES, "state": state,
        "key": key, "stuck": stuck, "totals": await runs.totals(), "number": number,
        "live": number <= LIVE_PAGES,
        "runs": found[(number - 1) * PAGE : number * PAGE],
        "more": len(found) > number * PAGE and number < MOST_PAGES,
    }  # fmt: skip


def run_of(request: Request) -> tuple[Runs, Id]:
    """The collection and the id of a run's page."""
    return node_of(request).runs(named(request, "runs")), piece(request, "run")


async def look_at_run(request: Request) -> dict[str, Any]:
    """One run, with what it emitted up to now."""
    runs, run_id = run_of(request)
    run = await runs.get(run_id)
    if request.query_params.get("live") == "1":
        events: list[Event] = []
    else:
        events = await _stored(runs, run)
    return {
        "page_title": shown(run_id), "now": await node_of(request).now(), "name": runs.name, "run": run,
        "events": events[-SHOWN:], "left_out": max(0, len(events) - SHOWN),
        "after": events[-1].id if events else "", "payloads": False,
    }  # fmt: skip


async def reveal(request: Request) -> dict[str, Any]:
    """The same, with its input and its result."""
    return {**await look_at_run(request), "payloads": True}


async def _stored(runs: Runs, run: Run) -> list[Event]:
    """What is there now, without waiting for more."""
    found: list[Event] = []
    if not run.events and not run.over:
        return found
    try:
        async with aclosing(runs.events(run.id, timeout=PATIENCE)) as events:
            async for event in events:
                found.append(event)
                if len(found) >= STORED or (not run.over and event.id == run.last_event):
                    break
    except TimeoutError:
        pass  # the last one is older than the record says
    return found


async def feed(request: Request, after: str) -> AsyncIterator[Rows]:
    """The events after this one, in lots, each as it comes."""
    runs, run_id = run_of(request)
    async with aclosing(runs.events(run_id, after or None)) as events:
        async for lot in _lots(events):
            yield Rows("run_events.html", {"events": lot}, lot[-1].id)


async def _lots(events: AsyncGenerator[Event, None]) -> AsyncIterator[list[Event]]:
    lot: list[Event] = []
    coming: asyncio.Task[Event | None] | None = None
    try:
        while True:
            coming = coming or asyncio.create_task(_following(events))
            done, _ = await asyncio.wait([coming], timeout=GATHER if lot else None)
            if done:
                event, coming = coming.result(), None
                if event is not None and len(lot) < MOST_AT_ONCE:
                    lot.append(event)
                    continue
            if lot:
                yield lot
                lot = [event] if done and event is not None else []
            if done and event is None:
                return
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


async def _following(events: AsyncGenerator[Event, None]) -> Event | None:
    try:
        return await anext(events)
    except StopAsyncIteration:
        return None


async def stop(request: Request) -> Ask:
    """Stop it wherever it is."""
    runs, run_id = run_of(request)

    async def work(given: Given) -> str:
        run = await runs.stop(run_id, given.reason)
        return f"it is {run.state}"

    return Ask(
        "stop", "Stop run", run_id, f"runs:{runs.name} {shown(run_id)}",
        "A queued run ends at once. A running one is cancelled, has a moment to clean up, and ends as stopped whatever "
        "its handler makes of it.",
        "Stop", work, _path(request, runs.name, run_id),
    )  # fmt: skip


_RUN = "/runs/{runs}/{run}"
PAGES = (
    Page("/runs", "runs.html", "runs", look, sampled=True),
    Page("/runs/{runs}", "collection.html", "runs", look_at_one),
    Page(_RUN, "run.html", "runs", look_at_run, every=1.0, feed=feed),
)
OTHERS = (("/find/run/{runs}", find),)
ACTIONS = (Action(_RUN + "/stop", "runs", stop),)
REVEALS = (Reveal(_RUN + "/show", "run.html", "runs", reveal),)
