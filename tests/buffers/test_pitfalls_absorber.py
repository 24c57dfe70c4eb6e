"""Pitfalls 3, 10, 19, 23 and 26 for batches and those who work on them: each check fails with the bug put back."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import time
from typing import Any

import pytest
from absorber_crew import NEVER, Crew, Member, Seen, gentle, seen, users_in

from holdfast import LeaseLost
from holdfast.buffers import holding
from holdfast.buffers.worker import Worker
from holdfast.engine.flow import call
from holdfast.engine.keeper import Hold, Keeper
from holdfast.engine.scope import AsyncScope
from support.backends import Backends
from support.conditions import patiently, until
from support.mutants import Case, Pitfalls, World, fails, holds, lua, patch

cases = Pitfalls()

_LOOK_AT_A_BATCH = "if b > 0 then return "
LEFT_THE_INDEX = lua("buffers/_schedule", _LOOK_AT_A_BATCH, f"if b > 0 then return 0 end\n  {_LOOK_AT_A_BATCH}")
DUE_AT_ONCE = lua("buffers/_schedule", _LOOK_AT_A_BATCH, f"if b > 0 then return now end\n  {_LOOK_AT_A_BATCH}")


async def worker(world: World, handler: Any, *, url: str | None = None, sweep: float = NEVER, **options: Any) -> Member:
    """A client that works, and listens everywhere."""
    hf = await world.client(url, sweep=sweep, drain=0.5)
    member = Member(hf, hf.buffer("inbox"))
    hf.absorber(member.inbox, **{"threshold": 1, **options})(handler)
    member.working = world.start(hf.work())
    crew = Crew(world.backends.get("valkey"))
    world.enter(contextlib.closing(crew.server))
    await crew.ready(member)
    return member


class Held:
    """A handler that keeps what it gets until it is let go or cancelled."""

    def __init__(self) -> None:
        self.log: list[Seen] = []
        self.cancelled: list[Seen] = []
        self.go = asyncio.Event()

    async def __call__(self, batch: Any) -> None:
        self.log.append(seen(batch))
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.append(seen(batch))
            raise


async def never(condition: Any, seconds: float, why: str) -> None:
    """It stays false for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert not condition(), why
        await asyncio.sleep(0.01)


# -- 3: work that lasts longer than the lease -----------------------------------------------------------------------


@cases.pitfall(
    3,
    never_renewed=patch(Hold, "next_look", lambda hold: hold.deadline),
    marker_renewed_instead=lua("buffers/renew", "deadline, due = now + life, now + life", "due = now + life"),
)
async def a_batch_is_held_as_long_as_its_handler_works(world: World):
    held = Held()
    first = await worker(world, held, lease=0.6)
    await worker(world, held, lease=0.6, sweep=0.1)
    await first.inbox.append("ann", "a")
    await until(lambda: held.log)
    why = "PITFALL 3: a second worker got the batch while the first one worked on it"
    await never(lambda: len(held.log) > 1 or held.cancelled, 1.5, why)
    held.go.set()


def _no_time_limit(world: World) -> None:
    made = Worker.__init__

    def init(self: Worker, core: Any, driver: Any, absorber: Any, make_batch: Any) -> None:
        made(self, core, driver, dataclasses.replace(absorber, timeout=3600.0), make_batch)

    world.patch.setattr(Worker, "__init__", init)


@cases.pitfall(3, no_time_limit=_no_time_limit)
async def a_handler_that_hangs_does_not_keep_its_batch_for_ever(world: World):
    held = Held()
    log: list[Seen] = []
    first = await worker(world, held, timeout=0.3, backoff=0.0, concurrency=1)
    await first.inbox.append("ann", "a")
    await until(lambda: held.log)
    await worker(world, gentle(log, "coroutine"))
    why = "PITFALL 3: a hung handler keeps its batch, renewed for ever; a second hand-out"
    await until(lambda: len(held.log) > 1 or log, within=0.9, what=why)


# -- 10: loss is pushed ---------------------------------------------------------------------------------------------

NOBODY_TOLD = patch(Hold, "watch", lambda hold, callback: lambda: None)


@cases.pitfall(
    10,
    nobody_told=NOBODY_TOLD,
    scope_deaf=patch(AsyncScope, "_told", lambda scope: None),
    no_signal=lua("buffers/clear", "call('SPUBLISH', ", "tostring("),
)
async def a_handler_is_cancelled_when_its_batch_is_taken_away(world: World):
    held = Held()
    member = await worker(world, held, lease=30)
    await member.inbox.append("ann", "a")
    await until(lambda: held.log)
    await member.inbox.forget("ann")
    await until(lambda: held.cancelled, within=0.6, what="PITFALL 10: the end of a handler whose batch was taken away")


@cases.pitfall(10, waits_for_the_server=patch(Keeper, "_lose", lambda keeper, hold, reason: None))
async def a_handler_that_cannot_reach_the_server_is_cancelled_at_its_deadline(world: World):
    held, proxy = Held(), world.proxy()
    member = await worker(world, held, url=proxy.url, lease=0.6)
    await member.inbox.append("ann", "a")
    await until(lambda: held.log)
    proxy.black_hole()
    await until(lambda: held.cancelled, within=1.3, what="PITFALL 10: the end of a handler past its deadline")


@cases.pitfall(
    10,
    nobody_told=NOBODY_TOLD,
    found_at_release=patch(Hold, "lose", lambda hold, reason: False),
)
async def a_plain_handler_sees_the_loss_while_it_works(world: World):
    told, started, end = threading.Event(), threading.Event(), threading.Event()
    saw: list[bool] = []

    def handle(batch: Any) -> None:
        batch.on_lost(told.set)
        started.set()
        told.wait(patiently(0.6))
        saw.append(told.is_set() and batch.lost)
        end.wait(5)

    member = await worker(world, handle, lease=30)
    await member.inbox.append("ann", "a")
    await until(started.is_set)
    await member.inbox.forget("ann")
    try:
        await until(lambda: saw, within=4)
        assert saw == [True], "PITFALL 10: a plain handler was not told of its loss while it worked"
    finally:
        end.set()


# -- 19: what was taken is not gone ---------------------------------------------------------------------------------

_call = Worker._call


async def _acknowledge_first(self: Worker, batch: Any) -> None:
    taking = batch._taking
    await self._driver.run(holding.ack(self._core, self._absorber.spec, taking, None))
    await _call(self, batch)


async def _errors_as_strings(self: Worker, batch: Any) -> str:
    try:
        await _call(self, batch)
    except Exception as error:
        return f"Error: {error}"
    return "ok"


async def _ack_in_finally(self: Worker, taking: Any, *_: Any) -> None:
    await self._driver.run(holding.ack(self._core, self._absorber.spec, taking, None))


@cases.pitfall(19, acknowledged_when_taken=patch(Worker, "_call", _acknowledge_first))
async def a_worker_that_vanishes_in_its_handler_loses_nothing(world: World):
    held, log, proxy = Held(), [], world.proxy()
    gone = await worker(world, held, url=proxy.url, lease=0.8)
    await gone.inbox.extend("ann", ["a", "b"])
    await until(lambda: held.log)
    proxy.black_hole()
    await worker(world, gentle(log, "coroutine"), sweep=0.1)
    await until(lambda: log, within=1.6, what="PITFALL 19: a second hand-out of what a dead worker had taken")
    again, first = log[0], held.log[0]
    assert (again.id, again.data, again.attempt) == (first.id, ["a", "b"], 2), "PITFALL 19: it is another batch"
    assert again.fence > first.fence, "PITFALL 19: the second hand-out cannot be told from the first by its fence"


@cases.pitfall(
    19,
    errors_as_strings=patch(Worker, "_call", _errors_as_strings),
    acknowledged_in_finally=patch(Worker, "_failed", _ack_in_finally),
)
async def an_error_is_not_taken_for_success(world: World):
    log: list[Seen] = []

    async def handle(batch: Any) -> None:
        log.append(seen(batch))
        if batch.attempt < 3:
            raise RuntimeError("the model is down")

    member = await worker(world, handle, backoff=0.0)
    await member.inbox.append("ann", "a")
    await until(lambda: len(log) == 3, within=0.6, what="PITFALL 19: a third attempt after two errors")
    assert [(one.attempt, one.data) for one in log] == [(1, ["a"]), (2, ["a"]), (3, ["a"])]


@cases.pitfall(19, acknowledged_in_finally=patch(Worker, "_failed", _ack_in_finally))
async def a_batch_that_fails_for_good_is_kept_as_a_dead_letter(world: World):
    async def handle(batch: Any) -> None:
        raise RuntimeError("never")

    member = await worker(world, handle, backoff=0.0, max_attempts=2)
    await member.inbox.append("ann", "a")

    async def letters() -> Any:
        return await member.inbox.dead_letters()

    (letter,) = await until(letters, within=0.6, what="PITFALL 19: a dead letter of what always fails")
    kept = await member.inbox.dead_letter(letter.id)
    assert [message.data for message in kept.messages] == ["a"], "PITFALL 19: the dead letter has lost its messages"


def _handed_back_as_done(world: World) -> None:
    """What a stopping worker could not finish is acknowledged all the same."""

    def ack_instead(core: Any, spec: Any, taking: Any, delay: float, attempts: int, error: str, **_: Any) -> Any:
        return holding.ack(core, spec, taking, None)

    world.patch.setattr(holding, "nack", ack_instead)


@cases.pitfall(19, stopped_taken_for_done=_handed_back_as_done)
async def what_a_stopping_worker_could_not_finish_is_not_lost(world: World):
    held, log = Held(), []
    first = await worker(world, held)
    await first.inbox.append("ann", "a")
    await until(lambda: held.log)
    second = await worker(world, gentle(log, "coroutine"))
    first.hf.stop_work()
    await first.working
    await until(lambda: log, within=0.6, what="PITFALL 19: a second hand-out of what was not finished")
    assert log[0].attempt == 1, "PITFALL 19: a deploy counts as an attempt, and five of them bury a healthy batch"
    assert (await second.inbox.dead_letters()) == []


# -- 23: busy now is not never --------------------------------------------------------------------------------------


@cases.pitfall(23, nobody_woken=lua("buffers/ack", "finish(false)", "finish(true)"))
async def messages_that_came_while_the_user_was_busy_trigger_when_it_is_free(world: World):
    # Given a batch that somebody has, and the threshold reached again meanwhile
    log: list[Seen] = []
    other = await world.client()
    inbox = other.buffer("inbox")
    await inbox.append("ann", 0)
    batch = await inbox.take("ann")
    await worker(world, gentle(log, "coroutine"), threshold=3, sweep=600.0)
    await inbox.extend("ann", [1, 2, 3])
    await never(lambda: log, 0.1, "PITFALL 23: two have batches of one user")
    # when it is acknowledged, expect a worker to be told
    await batch.ack()
    await until(lambda: log, within=0.6, what="PITFALL 23: a trigger after the user was busy")
    assert log[0].data == [1, 2, 3]


@cases.pitfall(
    23,
    left_the_index=LEFT_THE_INDEX,
)
async def a_batch_of_a_dead_worker_stays_in_the_index_of_who_is_due(world: World):
    held, log, proxy = Held(), [], world.proxy()
    gone = await worker(world, held, url=proxy.url, lease=0.6)
    await gone.inbox.append("ann", "a")
    await until(lambda: held.log)
    proxy.black_hole()
    await worker(world, gentle(log, "coroutine"), sweep=0.1)
    # with no further append
    await until(lambda: log, within=1.2, what="PITFALL 23: a second hand-out without another append")


@cases.pitfall(
    23,
    left_the_index=LEFT_THE_INDEX,
    nobody_woken=lua("buffers/nack", "finish(false)\nreturn {'returned'}", "finish(true)\nreturn {'returned'}"),
)
async def a_batch_that_was_given_back_is_handed_out_without_another_append(world: World):
    log: list[Seen] = []
    other = await world.client()
    inbox = other.buffer("inbox")
    await worker(world, gentle(log, "coroutine"), threshold=50, sweep=600.0)
    await inbox.append("ann", "a")
    batch = await inbox.take("ann")
    await batch.nack(0.1)
    await until(lambda: log, within=0.6, what="PITFALL 23: a hand-out of what was given back")
    assert (log[0].id, log[0].attempt) == (batch.id, 2)


@cases.pitfall(23, keeps_to_itself=patch(Worker, "_pass_on", lambda self, number: self._passed.add(number)))
async def a_signal_to_a_busy_worker_is_not_the_end_of_it(world: World):
    held = Held()
    await worker(world, held, concurrency=1)
    second = await worker(world, held, concurrency=1)
    one, two = users_in(9, 2)
    await second.inbox.append(one, 1)
    await until(lambda: held.log)
    await second.inbox.append(two, 1)
    await until(lambda: len(held.log) == 2, within=0.6, what="PITFALL 23: an idle worker told by one that is busy")
    held.go.set()


# -- 26: old and new ------------------------------------------------------------------------------------------------


async def expired_and_taken_again(world: World) -> tuple[Member, Any, Any]:
    """A batch whose first holder was cut off, and the same batch in the hands of its second."""
    proxy = world.proxy()
    first, second = await world.client(proxy.url), await world.client()
    inbox = second.buffer("inbox")
    await inbox.extend("ann", ["a", "b"])
    old = await first.buffer("inbox").take("ann", lease=0.4)
    proxy.black_hole()

    async def take() -> Any:
        try:
            return await inbox.take("ann", lease=30)
        except Exception:
            return None

    new = await until(take, within=3, what="the second hand-out")
    proxy.heal()
    assert new.id == old.id
    return Member(second, inbox), old, new


@cases.pitfall(26, token_not_compared=lua("buffers/ack", "or fence ~= mine or token ~= ARGV[3] or deadline <= now", ""))
async def an_old_acknowledgement_does_not_remove_the_newer_twin(world: World):
    member, old, new = await expired_and_taken_again(world)
    # The old holder knows that it is too late; a request that it had sent before may still arrive.
    with contextlib.suppress(LeaseLost):
        await old.ack()
    core, place = member.hf._core, old._taking.place
    args = (place.user, place.base, old._taking.hold.token, old.fence)
    flow = call(core.scripts.get("buffers/ack"), place.tag, (place.key,), args, clock=core.clock,
                until=core.clock() + 5)  # fmt: skip
    await member.hf._open.run(flow)
    stats = await member.inbox.stats("ann")
    assert (stats.in_flight, stats.held) == (2, True), "PITFALL 26: an old acknowledgement removed the newer twin"
    assert await new.ack() == 0


@cases.pitfall(26, token_not_compared=lua("buffers/nack", "or token ~= ARGV[3] or deadline <= now", ""))
async def an_old_give_back_does_not_end_the_newer_twin(world: World):
    member, old, new = await expired_and_taken_again(world)
    core, place = member.hf._core, old._taking.place
    await member.hf._open.run(holding.hand_back(core, place, old._taking.hold.token, old._taking.id, 0.0, 5, "late"))
    stats = await member.inbox.stats("ann")
    assert stats.held, "PITFALL 26: an old give-back ended the newer twin"
    assert await new.ack() == 0


@cases.pitfall(26, token_not_compared=lua("buffers/renew", "and token == ARGV[2 * i - 3] ", ""))
async def a_late_renewal_does_not_touch_the_newer_twin(world: World):
    member, old, new = await expired_and_taken_again(world)
    core, place = member.hf._core, old._taking.place
    flow = call(core.scripts.get("buffers/renew"), place.tag, (place.shard.due, place.key), (old._taking.hold.token, 1),
                clock=core.clock, until=core.clock() + 5)  # fmt: skip
    reply = await member.hf._open.run(flow)
    stats = await member.inbox.stats("ann")
    assert stats.free_in > 20, "PITFALL 26: a late renewal ended the lease of the newer twin"
    assert reply[2] == 0, "PITFALL 26: a late renewal was told that it holds the batch"
    assert await new.ack() == 0


@cases.pitfall(
    26,
    every_batch_is_an_orphan=DUE_AT_ONCE,
)
async def a_worker_does_not_reap_its_own_live_batch(world: World):
    held = Held()
    member = await worker(world, held, lease=5, sweep=0.1)
    await member.inbox.append("ann", "a")
    await until(lambda: held.log)
    why = "PITFALL 26: a worker reaped its own live batch"
    await never(lambda: len(held.log) > 1, 0.6, why)
    held.go.set()


@pytest.mark.parametrize("case", cases.holding())
async def test_holds(case: Case, backends: Backends):
    await holds(case, backends)


@pytest.mark.parametrize("case", cases.with_bugs())
async def test_fails_with_the_bug_put_back(case: Case, backends: Backends):
    await fails(case, backends)
