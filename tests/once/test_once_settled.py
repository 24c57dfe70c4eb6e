"""Handlers of what a gate has held back, in whichever process runs `work`."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

import holdfast
import holdfast.sync
from holdfast import ConfigurationError, Holdfast
from holdfast.engine.scripts import Scripts
from holdfast.events import HandlerFailed, ServerWarning
from holdfast.once import worker
from holdfast.testing import FaultProxy
from support.backends import Backend
from support.conditions import until
from support.working import Working

WINDOW = 0.3


class Told:
    """A subscriber: what it heard, in order. It may hold, and it may fail."""

    def __init__(self, *errors: BaseException | None) -> None:
        self.heard: list[tuple[Any, Any]] = []
        self.errors = list(errors)
        self.go = threading.Event()
        self.go.set()

    async def __call__(self, notice: Any) -> None:
        self.heard.append((notice.key, notice.state))
        await until(self.go.is_set)
        self._fail()

    def plainly(self, notice: Any) -> None:
        self.heard.append((notice.key, notice.state))
        assert self.go.wait(10)
        self._fail()

    def _fail(self) -> None:
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error


class Crew:
    """Clients that work, each with a handler of the same gate."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.members: list[Working] = []

    async def worker(
        self, handler: Any, twin: str = "async", *, url: str = "", lease: float = 30.0, **settings: Any
    ) -> Any:
        made = (holdfast if twin == "async" else holdfast.sync).Holdfast(url or self.url, **settings)
        member = Working(made)
        member.gate = made.gate("venues", WINDOW)  # type: ignore[attr-defined]
        await member.call(made.open)
        made.settled(member.gate, lease=lease)(handler)  # type: ignore[attr-defined]
        self.members.append(member)
        member.start()
        return member

    async def close(self) -> None:
        for member in self.members:
            await member.close()


@pytest.fixture
async def crew(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Crew]:
    monkeypatch.setattr(worker, "LOOK", 0.2)
    made = Crew(backend.url)
    yield made
    await made.close()


@pytest.fixture
async def alone(valkey: Backend, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Crew]:
    """One kind of server."""
    monkeypatch.setattr(worker, "LOOK", 0.2)
    made = Crew(valkey.url)
    yield made
    await made.close()


@pytest.fixture
async def gate(valkey: Backend) -> AsyncIterator[Any]:
    async with Holdfast(valkey.url) as hf:
        yield hf.gate("venues", WINDOW)


async def held_back(gate: Any, key: Any = "venue") -> None:
    """A thing that is B, and of which A was told last. On a busy machine the window may be over too early: again."""
    while [(await gate.check(key, state)).reason for state in "ABAB"] != HELD_BACK:
        await gate.forget(key)


HELD_BACK = ["first", "changed", "changed", "repeated"]


async def nothing_more(told: Told, count: int) -> None:
    """In as long as it would take to come twice, nothing does."""
    ends = time.monotonic() + 2 * WINDOW
    await until(lambda: time.monotonic() > ends or len(told.heard) > count)
    assert len(told.heard) == count, told.heard


@pytest.mark.parametrize("twin", ["async", "sync"])
async def test_what_was_held_back_is_told_once_when_the_window_is_over(crew: Crew, twin: str):
    # Given two processes that work, and one that only asks
    told = Told()
    for _ in range(2):
        await crew.worker(told, twin)
    async with Holdfast(crew.url) as hf:
        gate = hf.gate("venues", WINDOW)
        began = time.monotonic()
        for key in ("one", ("two", 2)):
            await held_back(gate, key)
        # when the window is over, expect each to be told once, by either of them
        await until(lambda: len(told.heard) == 2, what="two notices")
        assert time.monotonic() - began >= WINDOW
        assert set(told.heard) == {("one", "B"), (("two", 2), "B")}
        await nothing_more(told, 2)
        assert [(await gate.check(key, "B")).reason for key in ("one", ("two", 2))] == ["unchanged"] * 2


@pytest.mark.parametrize("twin", ["async", "sync"])
async def test_a_plain_function_runs_in_a_thread(alone: Crew, gate: Any, twin: str):
    told = Told()
    await alone.worker(told.plainly, twin)
    await held_back(gate)
    await until(lambda: told.heard, what="a notice")
    await nothing_more(told, 1)


@pytest.mark.parametrize("how", ["async", "plain"])
async def test_one_that_raises_gets_it_again_after_its_lease(alone: Crew, gate: Any, how: str):
    told = Told(ZeroDivisionError("no"), ValueError("nor"), None)
    member = await alone.worker(told if how == "async" else told.plainly, lease=0.2)
    await held_back(gate)
    await until(lambda: len(told.heard) == 3, what="three tries")
    await nothing_more(told, 3)
    failed = [event for event in member.events if isinstance(event, HandlerFailed)]
    assert [(event.name, event.key, event.error) for event in failed] == [
        ("venues", "venue", "ZeroDivisionError: no"), ("venues", "venue", "ValueError: nor"),
    ]  # fmt: skip
    assert await gate.due() == []


async def test_one_that_takes_too_long_is_ended_and_gets_it_again(alone: Crew, gate: Any):
    told = Told()
    told.go.clear()
    member = await alone.worker(told, lease=0.2)
    await held_back(gate)
    await until(lambda: len(told.heard) == 2, what="a second try")
    told.go.set()
    await until(lambda: not member.hf._core.holds and settled(gate), what="told")
    assert any(isinstance(event, HandlerFailed) for event in member.events)


def settled(gate: Any) -> Any:
    async def so() -> bool:
        return (await gate.check("venue", "B")).reason == "unchanged" and not await gate.due(lease=0.001)

    return so()


async def test_one_fails_and_its_neighbours_are_told(alone: Crew, gate: Any):
    told: list[Any] = []

    async def handler(notice: Any) -> None:
        if notice.key == "bad":
            raise ZeroDivisionError
        told.append(notice.key)

    await alone.worker(handler, lease=0.2)
    for key in ("bad", "one", "two"):
        await held_back(gate, key)
    await until(lambda: sorted(told) == ["one", "two"], what="the others")


async def test_when_work_is_stopped_what_is_under_way_is_finished(alone: Crew, gate: Any):
    told = Told()
    told.go.clear()
    member = await alone.worker(told)
    await held_back(gate)
    await until(lambda: told.heard)
    member.hf.stop_work()
    told.go.set()
    await member.stop()
    assert await settled(gate)
    # and nothing more is taken
    await held_back(gate, "later")
    await until(lambda: due_now(gate), what="somebody else to take it")
    assert len(told.heard) == 1


async def due_now(gate: Any) -> list[Any]:
    return [notice.key for notice in await gate.due(lease=0.001)]


async def test_when_work_is_cancelled_it_comes_again_elsewhere(alone: Crew, gate: Any):
    told, other = Told(), Told()
    told.go.clear()
    member = await alone.worker(told, lease=0.3)
    await held_back(gate)
    await until(lambda: told.heard)
    member.working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await member.working
    await alone.worker(other, lease=0.3)
    await until(lambda: other.heard == [("venue", "B")], what="a notice elsewhere")


async def test_a_worker_goes_on_when_its_server_is_back(alone: Crew, gate: Any, valkey: Backend):
    told = Told()
    with FaultProxy("127.0.0.1", valkey.owner.port) as proxy:
        member = await alone.worker(told, url=proxy.url, lease=0.3, call_timeout=0.2, retry_for=0.2)
        proxy.black_hole()
        await until(lambda: any("gate venues" in text for text in warnings(member)), what="a warning")
        await held_back(gate)
        proxy.heal()
        await until(lambda: told.heard == [("venue", "B")], what="a notice")
        await member.close()
        alone.members.remove(member)


def warnings(member: Working) -> list[str]:
    return [event.message for event in member.events if isinstance(event, ServerWarning)]


async def test_a_told_whose_reply_is_lost_is_sent_again(alone: Crew, gate: Any, valkey: Backend):
    told = Told()
    with FaultProxy("127.0.0.1", valkey.owner.port) as proxy:
        member = await alone.worker(told, url=proxy.url, lease=0.5, call_timeout=0.2)
        proxy.drop_replies(1, match=Scripts().get("once/told").sha)
        await held_back(gate)
        await until(lambda: proxy.replies_dropped and settled(gate), what="told, and once more")
        ends = time.monotonic() + 0.6
        await until(lambda: time.monotonic() > ends or len(told.heard) > 1)
        assert told.heard == [("venue", "B")]
        await member.close()
        alone.members.remove(member)


async def test_a_gate_has_one_handler_in_a_client(valkey: Backend):
    async with Holdfast(valkey.url) as hf:
        gate = hf.gate("venues")
        handler = hf.settled(gate)(Told())
        assert isinstance(handler, Told)  # it is given back as it was
        with pytest.raises(ConfigurationError, match="register one handler for a gate: 'venues' has one"):
            hf.settled(hf.gate("venues"))(Told())
        hf.settled(hf.gate("others"))(Told())
        for wrong in (0, -1, "1", True):
            with pytest.raises(ConfigurationError, match="pass lease as seconds"):
                hf.settled(gate, lease=wrong)
