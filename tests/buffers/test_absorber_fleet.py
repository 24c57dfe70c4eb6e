"""Several workers: who is told of work, what a lost signal costs, and what it costs to be idle."""

from __future__ import annotations

import asyncio
import statistics
import time

import pytest
from absorber_crew import NEVER, Crew, Seen, gentle, seen, users_apart, users_in

from holdfast.events import Taken
from holdfast.testing import FaultProxy, LocalServer
from support.backends import Backend
from support.conditions import until


class Held:
    """A handler that keeps what it gets until it is let go."""

    def __init__(self) -> None:
        self.log: list[Seen] = []
        self.go = asyncio.Event()

    def by(self, name: str):
        async def handle(batch):
            self.log.append(seen(batch, name))
            await self.go.wait()

        return handle

    def workers(self) -> list[str]:
        return sorted(one.worker for one in self.log)


# -- a full worker hands on -----------------------------------------------------------------------------------------


async def test_a_full_worker_hands_a_signal_on_to_an_idle_one_at_once(crew: Crew):
    held = Held()
    await crew.worker(held.by("a"), concurrency=1)
    b = await crew.worker(held.by("b"), concurrency=1)
    one, two = users_in(9, 2)
    await b.inbox.append(one, 1)
    await until(lambda: len(held.log) == 1, within=3)
    started = time.monotonic()
    await b.inbox.append(two, 1)
    await until(lambda: len(held.log) == 2, within=3, what="an idle worker that was told")
    assert time.monotonic() - started < 1
    assert held.workers() == ["a", "b"]
    held.go.set()


async def test_users_who_become_due_together_are_shared_by_idle_workers(crew: Crew):
    """The signals of a burst all go to the worker that looked last, before it knows that it will be full."""
    held = Held()
    await crew.worker(held.by("a"), concurrency=2)
    b = await crew.worker(held.by("b"), concurrency=2)
    await asyncio.gather(*(b.inbox.append(user, 1) for user in users_apart(4)))
    await until(lambda: len(held.log) == 4, within=3, what="both workers at work")
    assert held.workers() == ["a", "a", "b", "b"]
    held.go.set()


async def test_users_of_one_shard_who_become_due_together_are_shared(crew: Crew):
    held = Held()
    await crew.worker(held.by("a"), concurrency=1)
    b = await crew.worker(held.by("b"), concurrency=1)
    await asyncio.gather(*(b.inbox.append(user, 1) for user in users_in(9, 2)))
    await until(lambda: len(held.log) == 2, within=3, what="both workers at work")
    assert held.workers() == ["a", "b"]
    held.go.set()


async def test_a_full_worker_is_not_alone_in_knowing_who_becomes_due_later(crew: Crew):
    """The one who was told that a user is due in a while may be full by then."""
    held = Held()
    options = {"threshold": 2, "quiet": 0.3, "concurrency": 1}
    await crew.worker(held.by("a"), **options)
    b = await crew.worker(held.by("b"), **options)
    later, now = users_in(9, 2)
    await b.inbox.append(later, 1)
    await b.inbox.extend(now, [1, 2])
    await until(lambda: held.log, within=3)
    await until(lambda: len(held.log) == 2, within=4, what="an idle worker that was told")
    assert [one.user for one in held.log] == [now, later]
    assert held.workers() == ["a", "b"]
    held.go.set()


async def test_a_free_slot_takes_who_becomes_due_later_in_the_same_shard(crew: Crew):
    held = Held()
    member = await crew.worker(held.by("a"), threshold=2, quiet=0.3, concurrency=2)
    later, now = users_in(9, 2)
    await member.inbox.append(later, 1)
    await member.inbox.extend(now, [1, 2])
    await until(lambda: len(held.log) == 2, within=4, what="a look when the second user was due")
    assert [one.user for one in held.log] == [now, later]
    held.go.set()


async def test_a_worker_that_stops_hands_its_signals_on(crew: Crew):
    held = Held()
    log: list[Seen] = []
    a = await crew.worker(gentle(log, "coroutine", "a"))
    b = await crew.worker(held.by("b"), settings={"drain": 20.0})
    before = 0
    while not held.log:  # who looked last gets the signal: on a busy machine that may be the other one
        await a.inbox.append(f"first-{before}", 1)
        await until(lambda seen=before: held.log or len(log) > seen, what="a signal to either of them")
        before = len(log)
    b.hf.stop_work()
    await until(lambda: b.worker._stopping)
    await asyncio.gather(*(a.inbox.append(user, 1) for user in users_apart(20)))
    await until(lambda: len(log) == before + 20, within=3)
    held.go.set()
    await b.stop()


async def test_workers_share_the_work(crew: Crew):
    log: list[Seen] = []

    def handler(name: str):
        async def handle(batch):
            await asyncio.sleep(0.01)
            log.append(seen(batch, name))

        return handle

    workers = [await crew.worker(handler(f"w{n}"), concurrency=4) for n in range(3)]
    started = time.monotonic()
    await asyncio.gather(*(workers[0].inbox.append(f"u{number}", number) for number in range(300)))
    await until(lambda: len(log) == 300, within=10)
    assert time.monotonic() - started < 5
    share = {name: sum(one.worker == name for one in log) for name in ("w0", "w1", "w2")}
    assert min(share.values()) >= 30, share
    assert len({one.id for one in log}) == 300


# -- signals that are lost ------------------------------------------------------------------------------------------


async def test_a_signal_that_comes_while_a_look_is_answered_is_not_forgotten(crew: Crew):
    # Given a worker whose look found nothing, and which has not heard so yet
    log: list[Seen] = []
    member = await crew.worker(gentle(log, "coroutine"))
    other = await crew.client()
    (user,) = users_in(11, 1)
    driver, worker = member.hf._open, member.worker
    real, looked = driver.run, []

    async def run(flow):
        result = await real(flow)
        if getattr(flow, "__name__", "") == "claim" and not looked:
            looked.append(result)
            # when somebody becomes due there, and the signal overtakes the answer (it has its own connection)
            signals = []
            signalled = worker._signalled
            member.hf._core.mailbox.workers[worker._token] = lambda text: (signals.append(text), signalled(text))
            await other.inbox.append(user, 1)
            await until(lambda: signals, within=3, what="the signal")
        return result

    driver.run = run
    worker._look_at[11] = 0.0
    worker._wake.set()
    await until(lambda: looked, within=3)
    assert looked[0].taking is None
    # expect it to look again
    await until(lambda: log, within=3, what="another look")


async def test_a_lost_signal_is_made_up_for_by_the_sweep(crew: Crew, valkey: Backend):
    log: list[Seen] = []
    with FaultProxy(valkey.owner.host, valkey.owner.port) as proxy:
        member = await crew.worker(gentle(log, "coroutine"), url=proxy.url, settings={"sweep": 0.3})
        other = await crew.client()
        worker = member.worker
        member.hf._core.mailbox.workers[worker._token] = lambda text: None  # every signal is lost
        await asyncio.gather(*(other.inbox.append(user, 1) for user in users_apart(10)))
        await until(lambda: len(log) == 10, within=8)
        await crew.retire(member)


async def test_dead_workers_do_not_make_the_sweep_rarer(crew: Crew):
    """A killed worker stays in `idle`: when many die at once the sweep must not be put off for minutes."""
    log: list[Seen] = []
    early = await crew.client()
    shard = early.inbox._spec.shards[11]
    now = int(time.time() * 1000)
    crew.server.zadd(shard.idle, {f"{n:016x}.{n:016x}": now - 60_000 + n for n in range(60)})
    crew.server.pexpire(shard.idle, 3_600_000)
    member = await crew.worker(gentle(log, "coroutine"), settings={"sweep": 0.3})
    member.hf._core.mailbox.workers[member.worker._token] = lambda text: None  # every signal is lost
    (user,) = users_in(11, 1)
    await early.inbox.append(user, 1)
    await until(lambda: log, within=6, what="the sweep of a shard with dead workers")
    await until(lambda: crew.server.zcard(shard.idle) == 1, what="only the living worker among the idle")


async def test_a_lost_subscription_is_made_again_and_everything_looked_at(crew: Crew, valkey: Backend):
    log: list[Seen] = []
    with FaultProxy(valkey.owner.host, valkey.owner.port) as proxy:
        member = await crew.worker(gentle(log, "coroutine"), url=proxy.url)
        other = await crew.client()
        proxy.refuse()
        proxy.cut()
        await asyncio.gather(*(other.inbox.append(user, 1) for user in users_apart(5)))
        proxy.heal()
        await until(lambda: len(log) == 5, within=10)
        await crew.ready(member)
        await other.inbox.append("later", 1)
        await until(lambda: len(log) == 6, within=3)
        await crew.retire(member)


async def test_a_server_that_restarts_empty_is_told_the_triggers_again_or_swept(crew: Crew):
    """No persistence: users, triggers and idle workers are all forgotten. New users must still be absorbed."""
    log: list[Seen] = []
    with LocalServer() as server:
        settings = {"sweep": 0.3, "retry_for": 10.0}
        member = await crew.worker(
            gentle(log, "coroutine"), url=server.url, threshold=2, max_age=30, ready=False, settings=settings
        )
        await member.inbox.extend("ann", [1, 2])
        await until(lambda: len(log) == 1, within=5)
        server.kill()
        server.restart()
        await member.inbox.extend("bob", [1, 2])
        await until(lambda: len(log) == 2, within=10, what="work after the restart")
        await crew.retire(member)


async def test_a_paused_server_delays_and_loses_nothing(crew: Crew):
    log: list[Seen] = []
    with LocalServer() as server:
        settings = {"sweep": 0.3, "call_timeout": 0.3, "retry_for": 10.0}
        member = await crew.worker(gentle(log, "coroutine"), url=server.url, ready=False, settings=settings)
        await member.inbox.append("ann", 0)
        await until(lambda: log, within=5)
        appending = asyncio.gather(*(member.inbox.append(f"u{n}", n) for n in range(20)))
        server.pause()
        await asyncio.sleep(0.8)
        server.resume()
        await asyncio.gather(appending, return_exceptions=True)
        await until(lambda: {one.user for one in log} >= {f"u{n}" for n in range(20)}, within=10)
        assert sum(len(one.data) for one in log if one.attempt == 1) == 21
        await crew.retire(member)


async def test_a_batch_of_a_worker_that_vanished_is_found_within_its_lease(crew: Crew):
    """In one process: the client is cut off, so that its lease is not renewed."""
    held = Held()
    log: list[Seen] = []
    with FaultProxy(crew.backend.owner.host, crew.backend.owner.port) as proxy:
        gone = await crew.worker(held.by("gone"), url=proxy.url, lease=1.0)
        await gone.inbox.append("ann", "a")
        await until(lambda: held.log)
        proxy.black_hole()
        cut = time.monotonic()
        await crew.worker(gentle(log, "coroutine", "next"), settings={"sweep": 0.2})
        await until(lambda: log, within=4)
        assert time.monotonic() - cut < 3
        assert (log[0].id, log[0].attempt, log[0].data) == (held.log[0].id, 2, ["a"])
        assert log[0].fence > held.log[0].fence
        gone.working.cancel()
        proxy.heal()
        await asyncio.wait([gone.working], timeout=10)
        await crew.retire(gone)


# -- costs ----------------------------------------------------------------------------------------------------------


def scripts_run(crew: Crew) -> int:
    stats = crew.server.info("commandstats")
    return int(sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha")))


@pytest.mark.parametrize("count", [1, 6])
async def test_idle_workers_cost_the_same_however_many_they_are(crew: Crew, count: int):
    """About one look at each of 64 shards in a sweep, by the whole fleet."""
    sweep, watched = 0.3, 1.5
    log: list[Seen] = []
    for _ in range(count):
        await crew.worker(gentle(log, "coroutine"), settings={"sweep": sweep}, ready=False)
    early = await crew.client()

    async def settled():
        pipe = crew.server.pipeline(transaction=False)
        for shard in early.inbox._spec.shards:
            pipe.zcard(shard.idle)
        return set(pipe.execute()) == {count}

    await until(settled, within=20)
    await asyncio.sleep(count * sweep)  # plans that were made before all of them were known
    crew.server.config_resetstat()
    await asyncio.sleep(watched)
    cost = scripts_run(crew)
    expected = 64 * watched / sweep
    assert expected / 3 < cost < expected * 2, f"{cost} scripts where about {expected:.0f} were expected"


async def test_without_a_sweep_an_idle_worker_sends_nothing_and_a_batch_costs_little(crew: Crew):
    log: list[Seen] = []
    member = await crew.worker(gentle(log, "coroutine"))
    # A worker whose first looks came before its triggers were set may set them once more.
    crew.server.config_resetstat()
    await asyncio.sleep(0.3)
    assert scripts_run(crew) <= 4 * 64
    crew.server.config_resetstat()
    await asyncio.sleep(0.5)
    assert scripts_run(crew) <= 3  # a sweep of ten minutes is random: in half a second one look is not unheard of
    for number in range(20):
        await member.inbox.append("ann", number)
        await until(lambda n=number: len(log) == n + 1)
        await until(lambda: not member.worker._running)
    # append, claim, acknowledge, and the look that finds nothing more
    assert scripts_run(crew) <= 20 * 4 + 5


async def test_from_threshold_to_handler_in_a_moment(crew: Crew):
    """A generous bound; the benchmark has the figure."""
    took: list[float] = []
    sent: dict[str, float] = {}

    async def handle(batch):
        took.append(time.monotonic() - sent[batch.key])

    workers = [await crew.worker(handle, threshold=3, concurrency=20) for _ in range(2)]
    for number in range(200):
        user = f"u{number}"
        await workers[number % 2].inbox.extend(user, [1, 2])
        sent[user] = time.monotonic()
        await workers[number % 2].inbox.append(user, 3)
    await until(lambda: len(took) == 200)
    assert statistics.median(took) < 0.05


async def test_a_handler_that_blocks_the_loop_keeps_its_lease(crew: Crew):
    log: list[Seen] = []

    async def handle(batch):
        log.append(seen(batch, "slow"))
        time.sleep(1.2)

    slow = await crew.worker(handle, lease=0.6)
    await slow.inbox.append("ann", 1)
    await until(lambda: log)
    await until(lambda: crew.server.exists(slow.inbox._spec.place("ann").key) == 0)
    assert [one.attempt for one in log] == [1]
    assert [e.attempt for e in slow.events if isinstance(e, Taken)] == [1]
    assert slow.worker._core.settings.sweep == NEVER
