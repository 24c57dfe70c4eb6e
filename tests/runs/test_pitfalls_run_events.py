"""PITFALLS 34 and 35 for runs: what is emitted, and who reads it.

Each check holds, and fails with the bug put back."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from run_crew import Held, never
from run_pitfalls import data_of, opened, read

from holdfast import Event, Holdfast, RunStopped
from holdfast.engine.flow import Flow, Listen
from holdfast.engine.payload import encode
from holdfast.engine.signals import Mailbox
from holdfast.runs import feed as feed_module
from holdfast.runs import flows, owning
from holdfast.runs.active import ActiveRun
from holdfast.runs.feed import Reader
from holdfast.runs.outbox import Outbox
from holdfast.runs.record import pack_events
from support.backends import Backends
from support.conditions import until
from support.mutants import Case, Pitfalls, World, fails, holds, lua, patch

cases = Pitfalls()


# -- 34: order, tail, life ------------------------------------------------------------------------------------------


async def _fire_and_forget(self: ActiveRun, data: Any) -> None:
    """Each event is sent at once, and nobody waits for it."""
    outbox = self._outbox
    outbox._number += 1
    number, blob = outbox._number, pack_events([encode(data, 10_000)])

    async def send() -> None:
        await asyncio.sleep(0.02 / number)  # the network
        await self._driver.run(owning.write(self._core, self._spec, self._given, number, blob))

    self._driver.background(send())


@cases.pitfall(34, fire_and_forget=patch(ActiveRun, "emit", _fire_and_forget))
async def events_are_not_reordered(world: World):
    hf, runs = await opened(world)
    run = await runs.claim("r")
    for number in range(10):
        await run.emit(number)
    await run.flush()
    while working := set(hf._open._background):
        await asyncio.wait(working, timeout=5)
    async with run:
        pass
    seen = data_of(await read(runs, why="PITFALL 34: the end is lost"))
    assert seen == list(range(10)), f"PITFALL 34: pushes that nobody waits for: {seen} of 0 to 9, in this order"


async def _end_without_the_rest(self: Outbox, driver: Any, outcome: str, reason: str, result: bytes, *_: Any) -> str:
    flow = owning.settle(self._core, self._spec, self._given, self._number + 1, b"", outcome, reason, result, 0.0)
    return await driver.run(flow)


@cases.pitfall(34, end_does_not_wait=patch(Outbox, "settle", _end_without_the_rest))
async def the_tail_is_not_lost(world: World):
    _, runs = await opened(world, emit_delay=0.1)
    async with await runs.claim("r") as run:
        for number in range(20):
            await run.emit(number)
    events = await read(runs, why="PITFALL 34: the end is lost")
    assert data_of(events) == list(range(20)), "PITFALL 34: the last events of a run are lost"
    assert events[-1].kind == "end"


@cases.pitfall(34, end_does_not_wait=patch(Outbox, "settle", _end_without_the_rest))
async def the_tail_of_a_failed_run_is_not_lost(world: World):
    _, runs = await opened(world, emit_delay=0.1)
    with contextlib.suppress(ValueError):
        async with await runs.claim("r") as run:
            for number in range(20):
                await run.emit(number)
            raise ValueError("after that")
    events = await read(runs, why="PITFALL 34: the end is lost")
    assert data_of(events) == list(range(20)), "PITFALL 34: the events before an error are lost"


@cases.pitfall(
    34,
    life_before_the_first=lua("runs/_emit", "if first then call('PEXPIRE', base .. 'e:' .. id, LIFE) end", ""),
)
async def events_have_a_life_from_the_first_one_on(world: World):
    _, runs = await opened(world)
    server, key = world.redis(), runs._spec.place("r").events
    run = await runs.claim("r")
    await run.emit(1)
    await run.flush()
    assert server.pttl(key) > 0, "PITFALL 34: the life was set before there was anything, and the events stay for ever"


@cases.pitfall(
    34,
    life_of_the_run_alone=lua("runs/_move", "call('PEXPIRE', base .. 'e:' .. id, life)", ""),
    life_of_the_events_alone=lua("runs/_move", "call('PEXPIRE', base .. 'r:' .. id, life)", ""),
)
async def what_has_ended_goes_when_its_time_is_over(world: World):
    _, runs = await opened(world, retention=20.0)
    server, place = world.redis(), runs._spec.place("r")
    async with await runs.claim("r") as run:
        await run.emit(1)
    lives = [server.pttl(place.key), server.pttl(place.events)]
    assert all(0 < life <= 20_000 for life in lives), f"PITFALL 34: what has ended lives on for {lives} ms"


# -- 35: readers ----------------------------------------------------------------------------------------------------

_more = Reader.more


def _read_then_subscribe(self: Reader) -> Flow[list[Event]]:
    """What is there, and only then the subscription."""
    if self._feed is None:
        feed = self._join()
        events, _ = yield from self._fetch(feed)
        yield Listen(self._spec.tag, self._place.channel)
        feed.subscribed = True
        if events:
            return self._seen_now(events)
    return (yield from _more(self))


def _before_subscribing(hf: Holdfast, what: Any) -> None:
    """Something happens when this client subscribes, just before it has."""
    real = hf._open.hub.listen

    async def listen(tag: str, channel: str) -> bool:
        if ":ev:" in channel:
            await what()
        return await real(tag, channel)

    hf._open.hub.listen = listen


@cases.pitfall(35, read_then_subscribe=patch(Reader, "more", _read_then_subscribe))
async def the_gap_between_reading_and_listening_swallows_nothing(world: World):
    world.patch.setattr(feed_module, "CHECK", 60.0)
    _, runs = await opened(world)
    reader, seen_by = await opened(world)
    run = await runs.claim("r")
    await run.emit(1)
    await run.flush()

    async def end() -> None:
        async with run:
            await run.emit(2)

    _before_subscribing(reader, end)
    events = await read(seen_by, why="PITFALL 35: the gap has swallowed the end, and the reader hangs")
    assert data_of(events) == [1, 2], "PITFALL 35: the gap has swallowed an event"


@cases.pitfall(35, nobody_looks_after_a_reconnect=patch(Mailbox, "deliver_all", lambda mailbox: None))
async def a_lost_connection_swallows_nothing(world: World):
    world.patch.setattr(feed_module, "CHECK", 60.0)
    proxy = world.proxy()
    _, runs = await opened(world)
    reader, seen_by = await opened(world, proxy.url)
    run = await runs.claim("r")
    await run.emit(1)
    await run.flush()
    reading = world.start(read(seen_by, why="PITFALL 35: what came while nobody listened is lost; the reader hangs"))
    await until(lambda: any(feed._last for feed in reader._core.feeds.values()))
    proxy.refuse()
    proxy.cut()
    async with run:
        await run.emit(2)
    proxy.heal()
    assert data_of(await reading) == [1, 2], "PITFALL 35: an event came while nobody listened, and is lost"


STOP_IS_THE_END = lua(
    "runs/events", "state > STOPPING and call", "state >= STOPPING and call",
)  # fmt: skip


@cases.pitfall(35, stop_taken_for_the_end=STOP_IS_THE_END)
async def a_reader_gets_the_last_words_of_a_stopped_run(world: World):
    world.patch.setattr(feed_module, "CHECK", 0.05)
    _, runs = await opened(world)
    _, seen_by = await opened(world)
    run = await runs.claim("r")
    await run.emit(1)
    await run.flush()
    reading = world.start(read(seen_by, why="PITFALL 35: the reader of a stopped run hangs"))
    await runs.stop("r")
    await never(reading.done, 0.2, "PITFALL 35: a reader closed on the stop signal, before the run had ended")
    with contextlib.suppress(RunStopped):
        async with run:
            await run.emit("a last word")
    events = await reading
    assert data_of(events) == [1, "a last word"], "PITFALL 35: a reader closed on the stop signal, without draining"
    assert events[-1].data["state"] == "stopped"


_leave = Reader.leave


def _leaving_stops(self: Reader, driver: Any) -> None:
    if self._feed is not None and not self.over:
        driver.background(driver.run(flows.stop(self._core, self._spec, self._place.run, "client gone")))
    _leave(self, driver)


@cases.pitfall(35, disconnect_taken_for_stop=patch(Reader, "leave", _leaving_stops))
async def a_reader_that_goes_away_stops_nothing(world: World):
    held = Held()
    hf = await world.client(drain=0.3)
    runs = hf.runs("agent")
    hf.runner(runs)(held)
    world.start(hf.work())
    await runs.start("r")
    await until(lambda: held.log)
    await held.runs[0].emit(1)
    _, seen_by = await opened(world)
    reading = seen_by.events("r")
    assert (await anext(reading)).data == 1
    await reading.aclose()
    waiting = world.start(seen_by.wait("r"))
    await until(lambda: seen_by._core.feeds or waiting.done())
    waiting.cancel()
    await never(lambda: held.cancelled, 0.3, "PITFALL 35: a reader has gone, and its run was stopped")
    assert (await seen_by.get("r")).state == "running", "PITFALL 35: a reader has gone, and its run is stopping"
    held.go.set()


@cases.pitfall(
    35,
    end_is_not_stored=lua("runs/events", "ended_by[1], ended_by[2]", "nil"),
    dead_owner_sends_none=lua("runs/events", "judge()", ""),
)
async def the_end_comes_also_when_the_owner_died(world: World):
    world.patch.setattr(feed_module, "CHECK", 0.1)
    _, runs = await opened(world, max_attempts=1)
    run = await runs.claim("r", lease=0.2)
    run._given.hold.abandoned = True
    await run.emit(1)
    await run.flush()
    _, seen_by = await opened(world)
    events = await read(seen_by, why="PITFALL 35: the owner died without a word, and the reader hangs", within=2)
    assert (data_of(events), events[-1].kind) == ([1], "end")


@pytest.mark.parametrize("case", cases.holding())
async def test_holds(case: Case, backends: Backends):
    await holds(case, backends)


@pytest.mark.parametrize("case", cases.with_bugs())
async def test_fails_with_the_bug_put_back(case: Case, backends: Backends):
    await fails(case, backends)
