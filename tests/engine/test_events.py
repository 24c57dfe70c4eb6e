"""Events: what is told of a lock's life, and that who listens changes nothing."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import FrozenInstanceError
from typing import Any, TypeVar

import pytest
import redis

import holdfast.sync
from holdfast import Holdfast, LeaseLost, NotAcquired, events
from holdfast.engine.embedded import EmbeddedServer
from holdfast.events import (
    Event,
    Events,
    Expired,
    Forced,
    Granted,
    Lost,
    Refused,
    Released,
    Renewed,
    RenewFailed,
    ServerWarning,
    TakenOver,
    Waited,
)
from support.conditions import until

E = TypeVar("E", bound=Event)
KINDS = [
    kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
]


class Log:
    """An observer that remembers, and knows from which thread it was told."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.threads: set[str] = set()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self.threads.add(threading.current_thread().name)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def one(self, kind: type[E]) -> E:
        (found,) = self.of(kind)
        return found

    def names(self) -> list[str]:
        return [type(event).__name__ for event in self.events if not isinstance(event, ServerWarning)]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    embedded = EmbeddedServer.open("embedded:")
    yield embedded
    embedded.close()


@pytest.fixture
def url(server: EmbeddedServer) -> str:
    with redis.Redis(unix_socket_path=server.socket_path) as admin:
        admin.flushall()
    return f"unix://{server.socket_path}"


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
async def hf(url: str, log: Log) -> AsyncIterator[Holdfast]:
    async with Holdfast(url, observers=[log], name="watched") as client:
        yield client


@pytest.fixture
async def other(url: str) -> AsyncIterator[Holdfast]:
    """Another process's client, as far as the server can see."""
    async with Holdfast(url, name="other") as client:
        yield client


# -- handing out ------------------------------------------------------------------------------------------------------


def test_every_observer_gets_every_event_in_order() -> None:
    first, second = Log(), Log()
    bus = Events([first])
    bus.emit(Waited("a", 1))
    bus.add(second)
    bus.emit(Waited("b", 2))

    assert first.events == [Waited("a", 1), Waited("b", 2)]
    assert second.events == [Waited("b", 2)]


def test_without_observers_there_is_nothing_to_tell() -> None:
    assert not Events()
    assert Events([Log()])


def test_an_observer_that_fails_is_counted_each_time_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    # Given an observer that always fails, between two that work
    before, after = Log(), Log()

    def broken(event: Event) -> None:
        raise RuntimeError("no disk")

    bus = Events([before, broken, after])

    # when several events happen
    for position in range(5):
        bus.emit(Waited("a", position))

    # expect the others to have got all of them, five counted and one line in the log
    assert len(before.events) == len(after.events) == 5
    assert bus.failures == 5
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("holdfast", logging.ERROR)
    assert "no disk" in caplog.text


def test_each_observer_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def one(event: Event) -> None:
        raise RuntimeError("one")

    def two(event: Event) -> None:
        raise RuntimeError("two")

    bus = Events([one, two])
    bus.emit(Waited("a", 1))
    bus.emit(Waited("a", 1))

    assert len(caplog.records) == 2
    assert bus.failures == 4


async def test_a_client_with_a_broken_observer_works_as_if_there_were_none(
    url: str, other: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    # Given an observer that fails at every event of a lock's life
    def broken(event: Event) -> None:
        raise RuntimeError("no disk")

    async with Holdfast(url, observers=[broken]) as hf:
        # when it is granted, renewed, waited for, refused, released and lost
        async with hf.lock("a", ttl=0.3) as lease:
            assert await other.lock("a").try_acquire() is None
            with pytest.raises(NotAcquired):
                await hf.lock("b", ttl=0.3, wait=0).acquire() and await other.lock("b", wait=0).acquire()
            await until(lambda: lease.remaining() < 0.2, what="used up a little")
            await until(lambda: lease.remaining() > 0.2, what="renewed in spite of it")
        assert lease.released
        lost = await hf.lock("c", ttl=0.2, renew=False).acquire()
        assert await lost.wait_lost(5)

        # expect only that it was counted and logged once
        assert hf._core.events.failures >= 5
    assert len([record for record in caplog.records if record.name == "holdfast"]) == 1


async def test_an_observer_can_be_added_to_a_client_that_is_open(hf: Holdfast) -> None:
    late = Log()
    hf.observe(late)

    async with hf.lock("a"):
        pass

    assert late.names() == ["Granted", "Released"]


# -- nobody listens ---------------------------------------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all events that are made from here on."""
    names: list[str] = []

    def spy(kind: type[Event]) -> Callable[..., None]:
        original = kind.__init__

        def init(self: Event, *args: Any, **kwargs: Any) -> None:
            names.append(kind.__name__)
            original(self, *args, **kwargs)

        return init

    for kind in KINDS:
        monkeypatch.setattr(kind, "__init__", spy(kind))
    return names


async def live(hf: Holdfast, other: Holdfast) -> None:
    """Nearly everything that can happen to a lock of `hf`."""
    async with hf.lock("life"):
        with pytest.raises(NotAcquired):
            await hf.semaphore("life", 1).acquire(wait=0) and await hf.semaphore("life", 1).acquire(wait=0)
    held = await other.lock("queue").acquire()
    waiting = asyncio.create_task(hf.lock("queue").acquire(wait=10))
    while not (await other.inspect("queue")).waiting:
        await asyncio.sleep(0.005)
    await held.release()
    await (await waiting).release()
    await hf.lock("forced").acquire()
    await hf.force_release("forced", reason="test")
    await other.lock("dead", ttl=0.06, renew=False).acquire()
    taken = await hf.lock("dead").acquire(wait=10)
    await taken.release()
    lost = await hf.lock("lost", ttl=0.06, renew=False).acquire()
    assert await lost.wait_lost(10)


async def test_without_observers_no_event_is_made(url: str, other: Holdfast, made: list[str]) -> None:
    async with Holdfast(url) as hf:
        await live(hf, other)

    assert made == []


async def test_with_an_observer_events_are_made(url: str, other: Holdfast, made: list[str]) -> None:
    # The same once more, so that the test above is not true for another reason
    async with Holdfast(url, observers=[Log()]) as hf:
        await live(hf, other)

    assert {"Granted", "Released", "Refused", "Waited", "Forced", "Expired", "TakenOver", "Lost"} <= set(made)


async def test_without_observers_no_event_is_made_of_a_renewal(url: str, made: list[str]) -> None:
    async with Holdfast(url) as hf, hf.lock("renewed", ttl=0.3) as lease:
        await until(lambda: lease.remaining() < 0.2, what="used up a little")
        await until(lambda: lease.remaining() > 0.2, what="renewed")

    assert made == []


# -- the life of a lock -----------------------------------------------------------------------------------------------


async def test_granted_and_released(hf: Holdfast, log: Log) -> None:
    async with hf.lock("a:b") as lease:
        pass

    assert log.names() == ["Granted", "Released"]
    granted, released = log.one(Granted), log.one(Released)
    assert (granted.name, granted.fence, granted.handed_over) == ("a:b", lease.fence, False)
    assert (released.name, released.fence) == ("a:b", lease.fence)
    assert 0 <= granted.waited < 5
    assert 0 <= released.held < 5


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("two\nlines", "two\nlines"),
        ("caf\u00e9 {a}:50%", "caf\u00e9 {a}:50%"),
        (b"bytes", "bytes"),
        pytest.param(b"\xff", "%ff", id="no text at all, so as in the key"),
    ],
)
async def test_names_are_told_as_they_were_given(hf: Holdfast, log: Log, name: str | bytes, told: str) -> None:
    async with hf.lock(name):
        pass

    assert log.one(Granted).name == told


async def test_refused_because_it_is_busy(hf: Holdfast, other: Holdfast, log: Log) -> None:
    async with other.lock("a"):
        assert await hf.lock("a").try_acquire() is None

    assert log.names() == ["Refused"]
    refused = log.one(Refused)
    assert refused.name == "a"
    assert refused.reason.startswith("busy")


async def test_refused_because_the_wait_ran_out(hf: Holdfast, other: Holdfast, log: Log) -> None:
    async with other.lock("a"):
        with pytest.raises(NotAcquired):
            await hf.lock("a").acquire(wait=0.1)

    assert log.names() == ["Waited", "Refused"]
    refused = log.one(Refused)
    assert refused.reason == "wait ran out"
    assert 0.1 <= refused.waited < 5


async def test_waited_and_handed_over(hf: Holdfast, other: Holdfast, log: Log) -> None:
    # Given a holder and one who waits
    held = await other.lock("a").acquire()
    waiting = asyncio.create_task(hf.lock("a").acquire(wait=10))
    await until(lambda: log.of(Waited), what="queued")
    assert log.one(Waited) == Waited("a", 0)
    # (it is all ears once it has subscribed, asked again and found that it must wait)
    await until(lambda: any(map(callable, hf._core.mailbox._slots.values())), what="listening")

    # when it is released
    await held.release()

    # expect a grant that was handed over, with the time it took
    async with await waiting as lease:
        granted = log.one(Granted)
        assert (granted.fence, granted.handed_over) == (lease.fence, True)
        assert granted.waited > 0
    assert log.names()[:2] == ["Waited", "Granted"]


async def test_how_many_were_ahead(hf: Holdfast, other: Holdfast, log: Log) -> None:
    async with other.lock("a"):
        tasks = []
        for count in range(1, 4):
            tasks.append(asyncio.create_task(hf.lock("a").acquire(wait=10)))
            await until(lambda count=count: len(log.of(Waited)) == count, what="queued")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    assert [event.position for event in log.of(Waited)] == [0, 1, 2]


async def test_renewed(hf: Holdfast, log: Log) -> None:
    async with hf.lock("a", ttl=0.3) as lease:
        await until(lambda: len(log.of(Renewed)) >= 2, what="renewed twice")

    assert log.of(Renewed)[0] == Renewed("a", lease.fence, 0.3)
    assert "holdfast-keeper" in log.threads, "told from where it happened"


async def test_a_short_lease_is_renewed_too(hf: Holdfast, log: Log) -> None:
    # Given the only lease of a client, on a healthy server
    lease = await hf.lock("a", ttl=0.2).acquire()

    await until(lambda: len(log.of(Renewed)) >= 6 or lease.lost, what="renewed")

    assert not lease.lost, lease.lost_reason
    await lease.release()


async def test_lost_because_it_ran_out(hf: Holdfast, log: Log) -> None:
    lease = await hf.lock("a", ttl=0.1, renew=False).acquire()

    await until(lambda: log.of(Lost), what="lost")

    lost = log.one(Lost)
    assert (lost.name, lost.fence, lost.reason) == ("a", lease.fence, "expired")
    assert 0.05 < lost.held < 5
    with pytest.raises(LeaseLost):
        await lease.release()
    assert log.names() == ["Granted", "Lost"], "once, and no release"


async def test_lost_at_the_end_of_its_longest_hold(hf: Holdfast, log: Log) -> None:
    lease = await hf.lock("a", ttl=0.4, max_hold=0.7).acquire()

    await until(lambda: log.of(Lost), what="lost")

    assert log.one(Lost).reason == "max_hold"
    assert log.of(Renewed), "it was renewed before, and not beyond"
    assert 0.6 < log.one(Lost).held < 5
    assert lease.lost


async def test_lost_because_it_was_taken_away(hf: Holdfast, other: Holdfast, log: Log) -> None:
    # Given a lease whose holder listens for nothing, so that it finds out at its next renewal
    lease = await hf.lock("a", ttl=0.4).acquire()
    await other.force_release("a", reason="test")

    await until(lambda: log.of(Lost), what="lost")

    assert (log.one(Lost).name, log.one(Lost).fence) == ("a", lease.fence)
    assert log.one(Lost).reason in ("taken away", "forced")


async def test_lost_with_the_server(url: str, log: Log) -> None:
    # Given a server of its own, which goes away
    server = await asyncio.to_thread(EmbeddedServer.open, "embedded:")
    try:
        hf = await Holdfast(f"unix://{server.socket_path}", observers=[log], retry_for=0.2, call_timeout=0.2).open()
        lease = await hf.lock("a", ttl=0.5).acquire()
    finally:
        await asyncio.to_thread(server.close)

    # when its time is up without a renewal
    await until(lambda: log.of(Lost), what="lost")

    # expect both the reason for it and the loss
    assert log.one(Lost).reason == "not renewed in time"
    await until(lambda: log.of(RenewFailed), what="told why")
    failed = log.one(RenewFailed)
    assert (failed.name, failed.fence) == ("a", lease.fence)
    assert "server" in failed.error
    await hf.close()


async def test_lost_is_told_whoever_finds_out(url: str, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a lease that is past its deadline, released before the keeper has looked
    async with Holdfast(url, observers=[log]) as hf:
        lease = await hf.lock("a", ttl=0.1, renew=False).acquire()
        monkeypatch.setattr(hf._core.keeper, "_look", lambda due: None)
        await until(lambda: lease.remaining() == 0.0, what="past its deadline")

        with pytest.raises(LeaseLost):
            await lease.release()

    assert log.one(Lost).reason == "expired"


async def test_lost_is_told_where_check_finds_out(url: str, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a lease that is past its deadline, checked before the keeper has looked
    async with Holdfast(url, observers=[log]) as hf:
        lease = await hf.lock("a", ttl=0.1, renew=False).acquire()
        monkeypatch.setattr(hf._core.keeper, "_look", lambda due: None)
        await until(lambda: lease.remaining() == 0.0, what="past its deadline")

        with pytest.raises(LeaseLost):
            lease.check()
        with pytest.raises(LeaseLost):
            await lease.release()

    assert log.one(Lost).reason == "expired"


async def test_expired_and_taken_over(hf: Holdfast, other: Holdfast, log: Log) -> None:
    # Given a holder that died
    dead = await other.lock("a", ttl=0.1, renew=False).acquire()

    # when somebody gets what it had
    async with hf.lock("a", wait=10) as lease:
        pass

    # expect both the end of the one and the beginning of the other, with the name of the dead
    expired, taken = log.one(Expired), log.one(TakenOver)
    assert (expired.name, expired.count) == ("a", 1)
    assert expired.owner.endswith(" other")
    assert (taken.name, taken.fence, taken.previous_owner) == ("a", lease.fence, expired.owner)
    assert lease.fence > dead.fence


async def test_several_expired_at_once(hf: Holdfast, other: Holdfast, log: Log) -> None:
    for _ in range(3):
        await other.semaphore("s", 3, ttl=0.1, renew=False).acquire(wait=0)

    lease = await hf.semaphore("s", 3).acquire(wait=10)
    await lease.release()

    assert log.one(Expired).count >= 1
    assert log.one(TakenOver).fence == lease.fence


async def test_forced(hf: Holdfast, other: Holdfast, log: Log) -> None:
    lease = await other.lock("a").acquire()

    assert await hf.force_release("a", reason="stuck since noon", by="ops@example") == 1

    assert log.one(Forced) == Forced("a", 1, "stuck since noon", "ops@example")
    assert log.names() == ["Forced"]
    del lease


async def test_forced_where_nobody_holds_is_no_event(hf: Holdfast, log: Log) -> None:
    assert await hf.force_release("a", reason="stuck") == 0

    assert log.names() == []


async def test_entering_again_is_no_new_grant(hf: Holdfast, log: Log) -> None:
    async with hf.lock("a"), hf.lock("a"):
        pass

    assert log.names() == ["Granted", "Released"]


def test_the_blocking_twin_tells_the_same(url: str, log: Log) -> None:
    with holdfast.sync.Holdfast(url, observers=[log]) as hf, hf.lock("a"):
        assert hf.semaphore("s", 1).try_acquire() is not None
        assert hf.semaphore("s", 1).try_acquire() is None

    assert log.names() == ["Granted", "Granted", "Refused", "Released"]


async def test_a_server_without_a_file_is_warned_of(hf: Holdfast, log: Log) -> None:
    assert "append-only file is off" in log.one(ServerWarning).message


# -- what an event is -------------------------------------------------------------------------------------------------


def test_an_event_is_plain_data() -> None:
    granted = Granted("a", 5, 0.25)

    assert granted.as_dict() == {"name": "a", "fence": 5, "waited": 0.25, "handed_over": False, "handed_on": False}
    with pytest.raises(FrozenInstanceError):
        granted.fence = 6  # type: ignore[misc]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_event_carries_a_token(kind: type[Event]) -> None:
    # What proves ownership must not reach logs and metrics.
    assert not {"token", "payload", "url", "password"} & set(kind.__annotations__)
