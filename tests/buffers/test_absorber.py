"""The absorber in one process: when a handler is called, with what, and what its end means."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from absorber_crew import NEVER, Crew, Seen, gentle, seen, users_apart, users_in

from holdfast import ConfigurationError, Holdfast, LeaseLost
from holdfast.buffers import holding
from holdfast.engine.flow import call
from holdfast.events import Buried, Dropped, HandlerFailed, ServerWarning, Taken
from support.conditions import until


@pytest.fixture(params=["async", "sync"])
def twin(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["coroutine", "plain"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# -- triggers -------------------------------------------------------------------------------------------------------


async def test_threshold(crew: Crew, twin: str, kind: str):
    # Given a worker, and one message less than it waits for
    log: list[Seen] = []
    member = await crew.worker(gentle(log, kind), twin, threshold=3)
    for text in "ab":
        await member.do(member.inbox.append, "ann", text)
    assert (await member.do(member.inbox.totals)).due == 0
    # when the last one comes, expect one batch, acknowledged
    await member.do(member.inbox.append, "ann", "c")
    await until(lambda: log, within=3)
    await until(lambda: crew.server.exists(member.inbox._spec.place("ann").key) == 0)
    assert [(one.user, one.attempt, one.data) for one in log] == [("ann", 1, ["a", "b", "c"])]
    totals = await member.do(member.inbox.totals)
    assert (totals.counts["absorbed"], totals.counts["batches"], totals.users) == (3, 1, 0)


async def test_max_age(crew: Crew):
    log: list[Seen] = []
    member = await crew.worker(gentle(log, "coroutine"), threshold=50, max_age=0.3)
    started = time.monotonic()
    await member.inbox.append("ann", 1)
    await asyncio.sleep(0.15)
    await member.inbox.append("ann", 2)
    await until(lambda: log, within=3)
    assert 0.29 <= time.monotonic() - started < 1.5
    assert log[0].data == [1, 2]


async def test_quiet(crew: Crew):
    log: list[Seen] = []
    member = await crew.worker(gentle(log, "coroutine"), threshold=50, quiet=0.3)
    for number in range(4):
        await member.inbox.append("ann", number)
        last = time.monotonic()
        await asyncio.sleep(0.12)
    assert not log, "it was not quiet yet"
    await until(lambda: log, within=3)
    assert 0.29 <= time.monotonic() - last < 1.5
    assert [one.data for one in log] == [[0, 1, 2, 3]]


async def test_flush(crew: Crew, twin: str):
    log: list[Seen] = []
    member = await crew.worker(gentle(log, "coroutine"), twin, threshold=50)
    assert await member.do(member.inbox.flush, "ann") is False
    await member.do(member.inbox.append, "ann", 1)
    assert await member.do(member.inbox.flush, "ann") is True
    await until(lambda: log, within=3)
    assert log[0].data == [1]


async def test_messages_are_handed_over_before_their_age_removes_them(crew: Crew):
    log: list[Seen] = []
    member = await crew.worker(gentle(log, "coroutine"), threshold=50, buffer={"ttl": 1.0})
    started = time.monotonic()
    await member.inbox.append("ann", 1)
    await until(lambda: log, within=3)
    assert 0.4 <= time.monotonic() - started < 1.0
    assert "dropped.age" not in (await member.inbox.totals()).counts


async def test_more_than_a_batch_comes_as_several_in_order(crew: Crew):
    log: list[Seen] = []
    member = await crew.worker(gentle(log, "coroutine"), threshold=2, batch=2)
    await member.inbox.extend("ann", list(range(6)))
    await until(lambda: len(log) == 3, within=3)
    assert [one.data for one in log] == [[0, 1], [2, 3], [4, 5]]
    assert len({one.id for one in log}) == 3
    assert sorted(log, key=lambda one: one.fence) == log


async def test_triggers_of_a_later_worker_hold_for_those_who_waited_before(crew: Crew):
    # Given users under the triggers of one worker, and users who came before any worker
    log: list[Seen] = []
    early = await crew.client()
    users = users_apart(40) + users_in(50, 20)
    for user in users[::2]:
        await early.inbox.extend(user, [1, 2])
    first = await crew.worker(gentle(log, "coroutine"), threshold=10)
    for user in users[1::2]:
        await first.inbox.extend(user, [1, 2])
    await first.stop()
    assert not log
    # when one comes that waits for less, expect all of them to be due for it
    await crew.worker(gentle(log, "coroutine"), threshold=2, ready=False)
    await until(lambda: len(log) == len(users), within=10)
    assert {one.user for one in log} == set(users)


async def test_a_worker_that_starts_when_thousands_are_due(crew: Crew):
    log: list[Seen] = []
    early = await crew.client()
    users = [f"u{number}" for number in range(3000)]
    for at in range(0, len(users), 500):
        await asyncio.gather(*(early.inbox.append(user, user) for user in users[at : at + 500]))
    await crew.worker(gentle(log, "coroutine"), threshold=1, concurrency=50, ready=False)
    await until(lambda: len(log) >= len(users), within=20)
    assert sorted(one.user for one in log) == sorted(users)
    assert (await early.inbox.totals()).counts["absorbed"] == len(users)


# -- who comes first, and how many ----------------------------------------------------------------------------------


async def test_the_most_overdue_first_then_the_largest_backlog(crew: Crew):
    # Given a worker that is busy, and users of one shard who become due in two different seconds
    log: list[Seen] = []
    go = asyncio.Event()

    async def handle(batch):
        log.append(seen(batch))
        await go.wait()

    member = await crew.worker(handle, threshold=1, concurrency=1)
    first, one, two, many = users_in(7, 4)
    await member.inbox.append(first, 1)
    await until(lambda: log)
    while int(time.time() * 1000) % 1000 > 300:  # both of the next ones in one second of the server
        await asyncio.sleep(0.01)
    await member.inbox.append(one, 1)
    await member.inbox.extend(many, [1] * 9)
    second = int(time.time())
    await until(lambda: int(time.time()) > second, what="the next second")
    await member.inbox.extend(two, [1] * 20)
    # when it is free again, expect the earlier second first, and in it the larger backlog
    go.set()
    await until(lambda: len(log) == 4)
    assert [entry.user for entry in log] == [first, many, one, two]


async def test_concurrency_is_a_limit_and_is_used(crew: Crew, twin: str, kind: str):
    at_once, most, done = 0, 0, 0
    lock = threading.Lock()

    def enter(step: int) -> None:
        nonlocal at_once, most, done
        with lock:
            at_once += step
            most = max(most, at_once)
            done += step < 0

    async def handle(batch):
        enter(1)
        await asyncio.sleep(0.05)
        enter(-1)

    def handle_plainly(batch):
        enter(1)
        time.sleep(0.05)
        enter(-1)

    handler = handle if kind == "coroutine" else handle_plainly
    member = await crew.worker(handler, twin, concurrency=3)
    for user in users_apart(12):
        await member.do(member.inbox.append, user, 1)
    await until(lambda: done == 12)
    assert most == 3


async def test_one_batch_at_a_time_for_each_user_over_several_workers(crew: Crew):
    active: dict[str, int] = {}
    log: list[Seen] = []

    def handler(name: str):
        async def handle(batch):
            active[batch.key] = active.get(batch.key, 0) + 1
            assert active[batch.key] == 1, "two workers had batches of one user"
            await asyncio.sleep(0.002)
            active[batch.key] -= 1
            log.append(seen(batch, name))

        return handle

    workers = [await crew.worker(handler(f"w{n}"), concurrency=2, settings={"sweep": 0.3}) for n in range(3)]
    users = users_apart(4)
    for number in range(30):
        await asyncio.gather(*(workers[number % 3].inbox.append(user, number) for user in users))
    await until(lambda: sum(len(one.data) for one in log) >= 120)
    assert not [e for w in workers for e in w.events if isinstance(e, HandlerFailed)]
    for user in users:
        mine = [one for one in log if one.user == user]
        assert [data for one in mine for data in one.data] == list(range(30)), "order, each once"
        assert [one.fence for one in mine] == sorted({one.fence for one in mine})


# -- errors ---------------------------------------------------------------------------------------------------------


async def test_an_error_brings_the_same_batch_again_then_dead_letters_then_replay(crew: Crew, twin: str, kind: str):
    log: list[Seen] = []
    times: list[float] = []
    broken = True

    def note(batch) -> None:
        times.append(time.monotonic())
        log.append(seen(batch))
        if broken:
            raise ValueError(f"attempt {batch.attempt} of {batch.key}")

    async def handle(batch):
        note(batch)

    member = await crew.worker(
        handle if kind == "coroutine" else note, twin, threshold=2, max_attempts=3, backoff=0.2, backoff_most=0.3
    )
    # Given a handler that raises, expect the same batch each time, later each time
    await member.do(member.inbox.extend, "ann", ["a", "b"])
    await until(lambda: len(log) == 3)
    await until(lambda: [e for e in member.events if isinstance(e, Buried)])
    assert len({(one.id, *one.data) for one in log}) == 1
    assert [one.attempt for one in log] == [1, 2, 3]
    assert log[0].fence < log[1].fence < log[2].fence
    assert times[1] - times[0] >= 0.1
    assert times[2] - times[1] >= 0.15
    assert [e.attempt for e in member.events if isinstance(e, HandlerFailed)] == [1, 2, 3]
    # then a dead letter with the last error
    (letter,) = await member.do(member.inbox.dead_letters)
    assert (letter.key, letter.attempts, letter.count) == ("ann", 3, 2)
    assert letter.error == "ValueError: attempt 3 of ann"
    # when it is mended and replayed, expect the same batch, counted anew
    broken = False
    assert await member.do(member.inbox.replay, letter.id) == 2
    await until(lambda: len(log) == 4)
    assert (log[3].id, log[3].attempt, log[3].data) == (log[0].id, 1, ["a", "b"])
    assert log[3].fence > log[2].fence
    assert await member.do(member.inbox.dead_letters) == []


async def test_after_a_partial_acknowledgement_only_the_rest_comes_again(crew: Crew, twin: str, kind: str):
    log: list[Seen] = []

    def end(batch) -> None:
        if batch.attempt == 1:
            raise ValueError("not the rest")

    async def handle(batch):
        log.append(seen(batch))
        if batch.attempt == 1:
            assert await batch.ack([message.id for message in batch.messages[::2]]) == 2
        end(batch)

    def handle_plainly(batch):
        log.append(seen(batch))
        if batch.attempt == 1:
            assert batch.ack([message.id for message in batch.messages[::2]]) == 2
        end(batch)

    handler = handle if kind == "coroutine" else handle_plainly
    member = await crew.worker(handler, twin, threshold=4, backoff=0.0)
    await member.do(member.inbox.extend, "ann", [0, 1, 2, 3])
    await until(lambda: len(log) == 2)
    assert [(one.attempt, one.data) for one in log] == [(1, [0, 1, 2, 3]), (2, [1, 3])]
    assert log[0].id == log[1].id


async def test_a_handler_may_acknowledge_or_give_back_itself(crew: Crew):
    log: list[Seen] = []

    async def handle(batch):
        log.append(seen(batch))
        if batch.attempt == 1:
            await batch.nack(0.01, count=True)
        else:
            assert await batch.ack() == 0
            raise ValueError("after it was acknowledged")

    member = await crew.worker(handle)
    await member.inbox.append("ann", 1)
    await until(lambda: len(log) == 2)
    await until(lambda: crew.server.exists(member.inbox._spec.place("ann").key) == 0)
    assert [one.attempt for one in log] == [1, 2]
    assert await member.inbox.dead_letters() == []


async def test_a_handler_has_a_time_limit(crew: Crew, kind: str):
    log: list[Seen] = []
    cancelled: list[bool] = []
    let_go = threading.Event()

    async def handle(batch):
        log.append(seen(batch))
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    def handle_plainly(batch):
        log.append(seen(batch))
        let_go.wait(30)

    handler = handle if kind == "coroutine" else handle_plainly
    member = await crew.worker(handler, timeout=0.3, max_attempts=2, backoff=0.0)
    await member.inbox.append("ann", 1)
    await until(lambda: [e for e in member.events if isinstance(e, Buried)], within=5)
    let_go.set()
    (letter,) = await member.inbox.dead_letters()
    assert letter.error == "TimeoutError: the handler took longer than 0.3 s"
    assert [one.attempt for one in log] == [1, 2]
    assert cancelled == ([True, True] if kind == "coroutine" else [])


async def test_a_plain_handler_past_its_time_limit_is_told_that_it_lost_the_batch(crew: Crew):
    """It cannot be stopped, and another may have the batch by now: it must not believe that it acknowledged."""
    told: list[tuple[bool, str]] = []
    go = threading.Event()

    def handle(batch):
        if batch.attempt > 1:
            return
        go.wait(10)
        try:
            batch.check()
            batch.ack()
            told.append((batch.lost, "acknowledged"))
        except LeaseLost:
            told.append((batch.lost, "LeaseLost"))

    member = await crew.worker(handle, timeout=0.2, backoff=0.0)
    await member.inbox.append("ann", 1)
    await until(lambda: [e for e in member.events if isinstance(e, HandlerFailed)], within=5)
    go.set()
    await until(lambda: told)
    assert told == [(True, "LeaseLost")]


async def test_a_timeout_inside_a_handler_is_told_as_its_own(crew: Crew):
    async def handle(batch):
        async with asyncio.timeout(0.01):
            await asyncio.sleep(5)

    member = await crew.worker(handle, max_attempts=1)
    await member.inbox.append("ann", 1)
    await until(lambda: [e for e in member.events if isinstance(e, Buried)], within=5)
    (letter,) = await member.inbox.dead_letters()
    assert "took longer than" not in letter.error
    assert letter.error.startswith("TimeoutError")


async def test_a_cancellation_that_nobody_asked_for_is_an_error_of_the_handler(crew: Crew):
    """A handler that awaits something which was cancelled raises CancelledError: that must count as an attempt."""
    log: list[Seen] = []

    async def handle(batch):
        log.append(seen(batch))
        other = asyncio.ensure_future(asyncio.sleep(5))
        other.cancel()
        await other

    member = await crew.worker(handle, max_attempts=3, backoff=0.0)
    await member.inbox.append("ann", 1)
    await until(lambda: len(log) >= 3, within=5)
    await until(lambda: [e for e in member.events if isinstance(e, Buried)], within=2, what="its burial")
    assert [one.attempt for one in log] == [1, 2, 3]


# -- loss -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["forget", "deleted"])
async def test_loss_of_the_lease_cancels_a_coroutine(crew: Crew, how: str):
    log: list[Seen] = []
    ended: list[str] = []

    async def handle(batch):
        log.append(seen(batch))
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.append("cancelled" if batch.lost else "cancelled without loss")
            raise

    member = await crew.worker(handle, lease=0.9, concurrency=1)
    await member.inbox.append("ann", 1)
    await until(lambda: log)
    if how == "forget":
        assert await member.inbox.forget("ann") > log[0].fence
    else:
        crew.server.delete(member.inbox._spec.place("ann").key)
    await until(lambda: ended, within=2)
    assert ended == ["cancelled"]
    # and the worker goes on with others, in the same slot
    await member.inbox.append("bob", 1)
    await until(lambda: len(log) == 2, within=2)
    assert not [e for e in member.events if isinstance(e, HandlerFailed)]
    assert log[1].user == "bob"


async def test_loss_of_the_lease_is_seen_by_a_plain_handler(crew: Crew, twin: str):
    told = threading.Event()
    log: list[Seen] = []
    errors: list[str] = []

    def handle(batch):
        log.append(seen(batch))
        batch.on_lost(told.set)
        told.wait(10)
        assert batch.lost
        for step in (batch.check, batch.ack):
            try:
                step()
            except LeaseLost as error:
                errors.append(error.reason)

    member = await crew.worker(handle, twin, lease=0.9)
    await member.do(member.inbox.append, "ann", 1)
    await until(lambda: log)
    await member.do(member.inbox.forget, "ann")
    await until(lambda: len(errors) == 2, within=3)
    assert errors == ["forgotten", "forgotten"]


async def test_a_batch_whose_acknowledgement_finds_it_lost_is_handed_out_again(crew: Crew):
    # Given a handler that returns just when its lease was ended behind its back
    log: list[Seen] = []

    async def handle(batch):
        log.append(seen(batch))
        if batch.attempt == 1:
            place = batch._taking.place
            record = crew.server.lindex(place.key, 0)
            token = batch._taking.hold.token.encode()
            crew.server.lset(place.key, 0, record.replace(token, b"x" * len(token)))

    member = await crew.worker(handle, lease=0.5, settings={"sweep": 0.1})
    await member.inbox.append("ann", "a")
    # when the lease of "the other one" ends, expect the same batch
    await until(lambda: len(log) == 2, within=5)
    assert [(one.attempt, one.data) for one in log] == [(1, ["a"]), (2, ["a"])]
    assert log[0].id == log[1].id
    assert [e for e in member.events if isinstance(e, ServerWarning) and "lost" in e.message]
    await until(lambda: crew.server.exists(member.inbox._spec.place("ann").key) == 0)


async def test_a_holder_that_came_too_late_is_not_told_that_it_acknowledged(crew: Crew):
    """The same batch, the same id: whoever acknowledged it was the other one."""
    log: list[Seen] = []
    late, member = await crew.client(), await crew.worker(gentle(log, "coroutine"), settings={"sweep": 0.1})
    await member.stop()
    await late.inbox.append("ann", "a")
    batch = await late.inbox.take("ann", lease=0.3, max_hold=0.3)
    member.start()
    await until(lambda: log, within=5)
    await until(lambda: crew.server.exists(late.inbox._spec.place("ann").key) == 0)
    assert (log[0].id, log[0].attempt) == (batch.id, 2)
    # Given that it does not know yet: a process that was paused sends what it had ready
    core, place, hold = late.hf._core, batch._taking.place, batch._taking.hold
    args = (place.user, place.base, hold.token, hold.fence)
    script = core.scripts.get("buffers/ack")
    flow = call(script, place.tag, (place.key,), args, clock=core.clock, until=core.clock() + 5)
    assert (await late.hf._open.run(flow))[0] == b"not_held"


# -- stopping -------------------------------------------------------------------------------------------------------


async def test_stop_lets_handlers_finish_and_takes_nothing_more(crew: Crew, twin: str, kind: str):
    log: list[Seen] = []
    go = threading.Event()

    async def handle(batch):
        log.append(seen(batch))
        await asyncio.to_thread(go.wait, 10)

    def handle_plainly(batch):
        log.append(seen(batch))
        go.wait(10)

    handler = handle if kind == "coroutine" else handle_plainly
    member = await crew.worker(handler, twin, settings={"drain": 10.0})
    await member.do(member.inbox.append, "ann", 1)
    await until(lambda: log)
    member.hf.stop_work()
    await until(lambda: member.worker._stopping)
    await member.do(member.inbox.append, "bob", 1)
    go.set()
    await member.stop()
    assert [one.user for one in log] == ["ann"]
    totals = await member.do(member.inbox.totals)
    assert (totals.counts["absorbed"], totals.users, totals.idle_workers) == (1, 1, 0)


async def test_what_cannot_finish_is_handed_back_and_the_attempt_does_not_count(crew: Crew, kind: str):
    log: list[Seen] = []
    let_go = threading.Event()

    async def handle(batch):
        log.append(seen(batch, "first"))
        await asyncio.sleep(30)

    def handle_plainly(batch):
        log.append(seen(batch, "first"))
        let_go.wait(30)

    handler = handle if kind == "coroutine" else handle_plainly
    first = await crew.worker(handler, lease=30, settings={"drain": 0.2})
    await first.inbox.append("ann", "a")
    await until(lambda: log)
    second = await crew.worker(gentle(log, "coroutine", "second"))
    started = time.monotonic()
    await first.stop()
    await until(lambda: len(log) == 2, within=3)
    assert time.monotonic() - started < 3
    let_go.set()
    one, two = log
    assert (two.worker, two.id, two.attempt, two.data) == ("second", one.id, 1, ["a"])
    assert two.fence > one.fence
    await until(lambda: crew.server.exists(second.inbox._spec.place("ann").key) == 0)


async def test_cancelling_hands_back_at_once(crew: Crew):
    log: list[Seen] = []

    async def handle(batch):
        log.append(seen(batch))
        await asyncio.sleep(30)

    member = await crew.worker(handle, lease=30, settings={"drain": 30.0})
    await member.inbox.append("ann", 1)
    await until(lambda: log)
    member.working.cancel()
    done, _ = await asyncio.wait([member.working], timeout=3)
    assert done
    assert member.working.cancelled()
    stats = await member.inbox.stats("ann")
    assert (stats.in_flight, stats.held, stats.attempt, stats.free_in) == (1, False, 0, 0.0)
    assert (await member.inbox.totals()).idle_workers == 0


async def test_closing_the_client_ends_its_work(crew: Crew, twin: str):
    log: list[Seen] = []
    cancelled: list[bool] = []

    async def handle(batch):
        log.append(seen(batch))
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    other = await crew.client()
    member = await crew.worker(handle, twin, lease=30)
    await other.inbox.append("ann", 1)
    await until(lambda: log)
    await member.do(member.hf.close)
    done, _ = await asyncio.wait([member.working], timeout=4)
    try:
        assert done, "the work goes on with a client that was closed"
        stats = await other.inbox.stats("ann")
        assert (stats.in_flight, stats.held, stats.attempt) == (1, False, 0)
        assert (len(log), cancelled) == (1, [True])
    finally:
        member.hf.stop_work()


async def test_work_runs_once_in_a_client(crew: Crew, twin: str):
    log: list[Seen] = []
    member = await crew.worker(gentle(log, "plain"), twin)
    second = member.work()
    done, _ = await asyncio.wait([second], timeout=2)
    try:
        assert done, "a second work runs, which stop_work does not know of"
        assert isinstance(second.exception(), ConfigurationError)
        await member.do(member.inbox.append, "ann", 1)
        await until(lambda: log)
    finally:
        member.hf.stop_work()


async def test_work_can_be_started_again(crew: Crew, twin: str):
    log: list[Seen] = []
    member = await crew.worker(gentle(log, "plain"), twin)
    await member.stop()
    await member.do(member.inbox.append, "ann", 1)
    member.start()
    await until(lambda: log)


# -- data that this version cannot read -----------------------------------------------------------------------------


def spoil(crew: Crew, member, user: str, position: int, payload: bytes) -> None:
    """Write another payload into a message that waits."""
    key = member.inbox._spec.place(user).key
    entry = crew.server.lindex(key, position + 1)
    crew.server.lset(key, position + 1, entry[:17] + payload)


async def test_what_cannot_be_read_is_quarantined_and_its_neighbours_flow_on(crew: Crew):
    log: list[Seen] = []
    early = await crew.client()
    broken, whole = users_in(3, 2)
    await early.inbox.extend(broken, [0, 1, 2])
    await early.inbox.append(whole, 1)
    spoil(crew, early, broken, 1, b"\x00nonsense")
    member = await crew.worker(gentle(log, "coroutine"), ready=False)
    await until(lambda: len(log) == 2, within=5)
    assert {(one.user, *one.data) for one in log} == {(broken, 0, 2), (whole, 1)}
    (letter,) = await early.inbox.dead_letters()
    assert (letter.key, letter.count, letter.attempts) == (broken, 1, 1)
    assert "no known format" in letter.error
    assert [e for e in member.events if isinstance(e, Dropped) and e.reason == "unreadable"]
    await until(lambda: crew.server.exists(early.inbox._spec.place(broken).key) == 0)


async def test_a_newer_payload_stays_for_a_newer_worker_and_does_not_hold_up_others(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(holding, "LATER", 1.0)
    # Given users of one shard, some of whom have what only a newer version can read, and are first
    log: list[Seen] = []
    early = await crew.client()
    *newer, old = users_in(3, 4)
    for user in newer:
        await early.inbox.append(user, "future")
        spoil(crew, early, user, 0, b"\x1f" + b"\x01\x02")
    await early.inbox.append(old, 1)
    # when a worker of this version comes, expect it to take the others without delay
    member = await crew.worker(gentle(log, "coroutine"), ready=False, settings={"sweep": NEVER})
    await until(lambda: log, within=3, what="the neighbour of a newer payload")
    assert [one.user for one in log] == [old]
    assert [e for e in member.events if isinstance(e, ServerWarning) and "newer version" in e.message]
    await member.stop()
    # and nothing of theirs to be lost, dead or counted as an attempt
    for user in newer:
        stats = await early.inbox.stats(user)
        assert (stats.waiting + stats.in_flight, stats.held, stats.attempt) == (1, False, 0)
        spoil(crew, early, user, 0, b"\x01\xa1n")
        key = early.inbox._spec.place(user).key
        assert crew.server.lindex(key, 1).endswith(b"\x01\xa1n")
    await crew.worker(gentle(log, "coroutine"), ready=False, settings={"sweep": 0.5})
    await until(lambda: len(log) == 4, within=8)
    assert {(one.user, one.attempt, *one.data) for one in log[1:]} == {(user, 1, "n") for user in newer}


# -- registration ---------------------------------------------------------------------------------------------------


async def test_registration_errors(crew: Crew):
    hf = Holdfast("redis://127.0.0.1:1")
    inbox = hf.buffer("inbox", capacity=20)

    async def handle(batch):
        pass

    wrong = [
        {"threshold": 0}, {"threshold": 21}, {"threshold": True}, {"threshold": 1.5}, {"max_age": 0},
        {"max_age": float("nan")}, {"quiet": -1}, {"batch": 0}, {"batch": 100_000}, {"concurrency": 0},
        {"lease": 0.001}, {"lease": "long"}, {"timeout": 0}, {"max_attempts": 0}, {"backoff": -1},
        {"backoff_most": float("inf")},
    ]  # fmt: skip
    for options in wrong:
        with pytest.raises(ConfigurationError) as caught:
            hf.absorber(inbox, **options)(handle)
        assert str(caught.value).startswith("pass "), caught.value
    for thing in (None, "handle", 5):
        with pytest.raises(ConfigurationError, match=r"^decorate a function"):
            hf.absorber(inbox)(thing)
    assert hf.absorber(inbox)(handle) is handle
    with pytest.raises(ConfigurationError, match=r"^register one absorber for a buffer"):
        hf.absorber(inbox)(handle)
    with pytest.raises(ConfigurationError, match=r"^open it first"):
        await hf.work()
    idle = await crew.client()
    with pytest.raises(ConfigurationError, match=r"^register something first"):
        await idle.hf.work()
    idle.hf.stop_work()  # of nothing: no error


async def test_two_absorbers_in_one_client(crew: Crew):
    log: list[Seen] = []
    member = await crew.client()
    other = member.hf.buffer("other")
    member.hf.absorber(member.inbox, threshold=1)(gentle(log, "coroutine", "inbox"))
    member.hf.absorber(other, threshold=1)(gentle(log, "plain", "other"))
    member.start()
    await member.inbox.append("ann", 1)
    await other.append("ann", 2)
    await until(lambda: len(log) == 2)
    assert {(one.worker, *one.data) for one in log} == {("inbox", 1), ("other", 2)}
    assert [e.attempt for e in member.events if isinstance(e, Taken)] == [1, 1]
    await member.stop()
