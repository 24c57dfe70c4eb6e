"""PITFALL 37 for runs: what a producer has emitted does not die with it. Each check fails with the bug put back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest
from run_pitfalls import data_of, opened, read

from holdfast.runs import feed as feed_module
from holdfast.runs import outbox as outbox_module
from holdfast.runs.outbox import Outbox
from support.backends import Backends
from support.conditions import until
from support.mutants import Case, Pitfalls, World, before_all, fails, holds, patch

cases = Pitfalls()


def _until_the_end(self: Outbox, driver: Any) -> None:
    """Kept until somebody flushes, or the run ends."""


def _when_quiet(self: Outbox, payload: bytes, driver: Any) -> None:
    """Sent when nothing was emitted for a while."""
    self._waiting.append(payload)
    self._bytes += len(payload)
    timer = getattr(driver, "quiet", None)
    if timer is not None:
        timer.cancel()
    driver.quiet = driver.call_later(self._spec.delay, lambda: driver.background(self._send_soon(driver)))


@cases.pitfall(37, kept_until_the_end=patch(Outbox, "_schedule", _until_the_end))
async def a_killed_producer_leaves_what_it_emitted(world: World):
    # Given a producer that emits and then computes, without another word
    proxy = world.proxy()
    _, runs = await opened(world, proxy.url, emit_delay=0.05, max_attempts=1)
    _, seen_by = await opened(world)
    run = await runs.claim("r", lease=0.4)
    for number in range(5):
        await run.emit(number)

    async def stored() -> bool:
        return (await seen_by.get("r")).events == 5

    await until(stored, within=0.3, what="PITFALL 37: chunks stay in the producer's memory; all of them stored")
    # when it is killed, expect a reader to get them, and the end
    proxy.black_hole()
    world.patch.setattr(feed_module, "CHECK", 0.1)
    events = await read(seen_by, why="PITFALL 37: the producer died, and the reader hangs")
    assert data_of(events) == list(range(5)), "PITFALL 37: chunks died with their producer"
    assert events[-1].data["reason"] == "worker lost"


@cases.pitfall(37, gathered_while_it_goes_on=patch(Outbox, "put", _when_quiet))
async def a_busy_producer_keeps_back_no_more_than_its_delay(world: World):
    _, runs = await opened(world, emit_delay=0.1)
    _, seen_by = await opened(world)
    run = await runs.claim("r")
    stored: list[int] = []
    end = time.monotonic() + 0.8
    number = 0
    while time.monotonic() < end:
        number += 1
        await run.emit(number)
        await asyncio.sleep(0.02)
        stored.append((await seen_by.get("r")).events)
    assert max(stored) > number / 2, (
        f"PITFALL 37: of {number} chunks only {max(stored)} have left the producer's memory"
    )
    await run.flush()


@cases.pitfall(37, unbounded=patch(Outbox, "full", property(lambda self: False)))
async def what_cannot_be_sent_does_not_fill_the_memory(world: World):
    world.patch.setattr(outbox_module, "MOST", 50)
    proxy = world.proxy()
    hf = await world.client(proxy.url, call_timeout=0.5, retry_for=0.5)
    runs = hf.runs("agent", lease=1.0)
    run = await runs.claim("r")
    proxy.black_hole()

    async def emit() -> None:
        for number in range(1000):
            await run.emit(number)

    emitting = world.start(emit())
    await asyncio.wait({emitting}, timeout=0.3)
    kept = len(run._outbox._waiting)
    assert kept <= 50, f"PITFALL 37: {kept} chunks are in the memory of a producer that cannot send"
    proxy.heal()


@cases.pitfall(37, only_the_events=patch(Outbox, "_schedule", _until_the_end))
async def a_new_owner_finds_what_the_old_one_emitted(world: World):
    _, runs = await opened(world, emit_delay=0.02)
    _, other = await opened(world)
    run = await runs.claim("r", lease=0.3)
    run._given.hold.abandoned = True
    await run.emit("half an answer")
    await until(lambda: run.lost, within=2)

    async def again() -> Any:
        with contextlib.suppress(Exception):
            return await other.claim("r")
        return None

    async with await until(again, within=2):
        pass
    events = await read(other, why="PITFALL 37: the reader hangs")
    assert data_of(events) == ["half an answer"], "PITFALL 37: what the first owner emitted died with it"


PRODUCER = """
import asyncio, sys
import holdfast

async def main():
    async with holdfast.Holdfast(sys.argv[1]) as hf:
        run = await hf.runs("agent", lease=1.0, emit_delay=0.05, max_attempts=1).claim("r")
        number = 0
        while True:
            number += 1
            await run.emit(number)
            print(number, flush=True)
            await asyncio.sleep(0.005)

asyncio.run(main())
"""
_KEPT = "from holdfast.runs.outbox import Outbox\nOutbox._schedule = lambda self, driver: None"


@cases.pitfall(37, kept_until_the_end=before_all(_KEPT))
async def a_process_that_is_killed_loses_only_its_last_moment(world: World):
    # Given a process that says what it has emitted
    _, seen_by = await opened(world)
    process = await world.python(PRODUCER, world.url)
    said: list[float] = []
    while len(said) < 60:
        assert await asyncio.wait_for(process.stdout.readline(), 20), "the producer has ended"
        said.append(time.monotonic())
    # when it is killed, expect all but what it emitted in its last moments: the delay, and what a request may take
    process.kill()
    killed = time.monotonic()
    await process.wait()
    sure = sum(1 for at in said if at < killed - 0.05 - 0.15)
    stored = (await seen_by.get("r")).events
    assert sure > 0
    assert stored >= sure, f"PITFALL 37: {sure} chunks were emitted well before the kill, and {stored} are left"
    world.patch.setattr(feed_module, "CHECK", 0.2)
    events = await read(seen_by, why="PITFALL 37: the producer was killed, and the reader hangs", within=5)
    assert data_of(events) == list(range(1, stored + 1)), "PITFALL 37: chunks are missing in the middle"


@pytest.mark.parametrize("case", cases.holding())
async def test_holds(case: Case, backends: Backends):
    await holds(case, backends)


@pytest.mark.parametrize("case", cases.with_bugs())
async def test_fails_with_the_bug_put_back(case: Case, backends: Backends):
    await fails(case, backends)
