"""Stopping a run that has a runner: before, in the middle, at the end, with and without the message."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from run_crew import Hand, Hands, Held, never, until_told

from holdfast import RunStopped
from holdfast.events import ServerWarning
from holdfast.runs import worker as worker_module
from support.conditions import until


async def running(hands: Hands, handler: Any, **options: Any) -> Hand:
    """A worker that has the run `r`."""
    hand = await hands.worker(handler, runs={"lease": 30.0, **options.pop("runs", {})}, **options)
    await hand.agent.start("r", key="k")
    await hand.becomes("r", "running")
    return hand


async def stopped(hand: Hand, within: float = 5.0) -> Any:
    run = await hand.ended("r", within)
    assert (run.state, run.reason) == ("stopped", "enough")
    return run


# -- before it runs -------------------------------------------------------------------------------------------------


async def test_a_run_that_is_stopped_before_it_starts_never_runs(hands: Hands):
    held = Held()
    client = await hands.client()
    await client.agent.start("r")
    assert (await client.agent.stop("r", "enough")).state == "stopped"
    hand = await hands.worker(held)
    await hand.agent.start("other")
    await until(lambda: held.log, what="the other one")
    assert held.log == ["other"]
    held.go.set()


async def test_a_run_that_is_stopped_while_it_waits_for_its_key_never_runs(hands: Hands):
    held = Held()
    hand = await running(hands, held)
    for name in ("second", "third"):
        await hand.agent.start(name, key="k")
    assert (await hand.agent.stop("second")).state == "stopped"
    held.go.set()
    assert (await hand.ended("third")).state == "completed"
    assert held.log == ["r", "third"]


async def test_replace_runs_the_new_one_when_the_old_one_has_ended(hands: Hands):
    order: list[str] = []

    async def work(run: Any) -> None:
        order.append(f"{run.id} begins")
        try:
            if run.id == "r":
                await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            order.append(f"{run.id} ends")

    hand = await running(hands, work)
    await hand.agent.start("new", key="k", conflict="replace")
    assert (await hand.ended("new")).state == "completed"
    assert order == ["r begins", "r ends", "new begins", "new ends"]
    assert (await hand.agent.get("r")).reason == "replaced by new"


# -- in the middle --------------------------------------------------------------------------------------------------


async def test_a_stop_in_the_middle_of_an_await_cancels_at_once(hands: Hands):
    held = Held()
    hand = await running(hands, held)
    await until(lambda: held.log, what="the handler")
    other = await hands.client()
    asked = time.monotonic()
    await other.agent.stop("r", "enough")
    await until(lambda: held.cancelled, within=0.8, what="the cancellation, by the message")
    await stopped(hand)
    assert time.monotonic() - asked < 2


async def test_a_stop_between_outputs_is_seen(hands: Hands):
    async def work(run: Any) -> None:
        number = 0
        while True:
            number += 1
            await run.emit(number)

    hand = await running(hands, work, runs={"max_events": 100})
    await (await hands.client()).agent.stop("r", "enough")
    run = await stopped(hand)
    events = [event async for event in hand.agent.events("r", timeout=5)]
    assert events[-1].kind == "end"
    assert run.events + run.dropped == events[-2].data, "the numbers go up to the last one that was emitted"


@pytest.mark.parametrize("how", ["stopping", "check", "checkpoint", "on_stop"])
async def test_a_plain_function_sees_that_it_should_stop(hands: Hands, how: str):
    begun = threading.Event()

    def work(run: Any) -> str:
        begun.set()
        if how == "on_stop":
            told = threading.Event()
            run.on_stop(told.set)
            assert told.wait(5)
        elif how == "stopping":
            assert until_told(run)
        else:
            for _ in range(1000):
                run.check() if how == "check" else run.checkpoint(1)
                time.sleep(0.005)
        run.emit("a last word")
        return "cleaned up"

    hand = await running(hands, work)
    await until(begun.is_set, what="the handler")
    await (await hands.client()).agent.stop("r", "enough")
    run = await stopped(hand)
    assert run.result == (None if how in ("check", "checkpoint") else "cleaned up")
    assert run.events == (0 if how in ("check", "checkpoint") else 1)


async def test_a_checkpoint_raises_in_a_coroutine_that_shields_itself(hands: Hands):
    seen: list[str] = []

    async def work(run: Any) -> None:
        while True:
            try:
                await run.checkpoint(1)
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                seen.append("cancelled")
            except RunStopped:
                seen.append("stopped")
                raise

    hand = await running(hands, work)
    await (await hands.client()).agent.stop("r", "enough")
    await stopped(hand)
    assert seen[-1] == "stopped"


async def test_a_stop_after_a_takeover_reaches_the_new_owner(hands: Hands):
    log: list[Any] = []
    one, two = Held("one", log=log), Held("two", log=log)
    first = await hands.worker(one, runs={"lease": 0.4}, resumable=True)
    await first.agent.start("r")
    await until(lambda: log, what="the first owner")
    one.runs[0]._given.hold.abandoned = True
    second = await hands.worker(two, runs={"lease": 0.4}, resumable=True)
    await until(lambda: ("two", "r", 2) in log or ("one", "r", 2) in log, what="the second owner")
    await first.agent.stop("r", "enough")
    await stopped(second)
    assert (one if log[-1][0] == "one" else two).cancelled[-1] == "r"


async def test_a_stop_of_a_run_whose_owner_died_ends_it_without_another_attempt(hands: Hands):
    held = Held()
    first = await hands.worker(held, runs={"lease": 0.4}, resumable=True)
    await first.agent.start("r")
    await until(lambda: held.log, what="the handler")
    first.deafen()
    held.runs[0]._given.hold.abandoned = True
    first.worker._active.clear()
    await first.agent.stop("r", "enough")
    run = await stopped(first)
    assert (run.attempt, held.log) == (1, ["r"])


# -- the message is lost --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["coroutine", "plain"])
async def test_a_stop_whose_message_is_lost_is_found_within_about_a_second(hands: Hands, kind: str):
    held, begun, saw = Held(), threading.Event(), threading.Event()

    def plainly(run: Any) -> None:
        begun.set()
        if until_told(run):
            saw.set()

    hand = await running(hands, held if kind == "coroutine" else plainly)
    hand.deafen()
    await until(lambda: held.log or begun.is_set(), what="the handler")
    await hand.agent.stop("r", "enough")
    await until(lambda: held.cancelled or saw.is_set(), within=2.5, what="the end, without a message")
    await stopped(hand)


async def test_a_failing_look_for_stops_does_not_stop_a_healthy_run(hands: Hands, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker_module, "STOP_CHECK", 0.05)
    held = Held(result="fine")
    hand = await running(hands, held)
    hands.server.execute_command("SCRIPT", "FLUSH")
    core = hand.hf._core
    real, broken = core.scripts.get, core.scripts.get("locks/inspect")
    monkeypatch.setattr(core.scripts, "get", lambda name: broken if name == "runs/flags" else real(name))
    await never(lambda: held.cancelled, 0.4, "a look that failed has stopped it")
    held.go.set()
    run = await hand.ended("r")
    assert (run.state, run.result) == ("completed", "fine")


# -- the end --------------------------------------------------------------------------------------------------------


async def test_what_completes_as_it_is_stopped_ends_stopped(hands: Hands, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker_module, "STOP_CHECK", 60.0)
    held = Held(result="all done")
    hand = await running(hands, held)
    await until(lambda: held.log, what="the handler")
    hand.deafen()
    await hand.agent.stop("r", "enough")
    held.go.set()
    run = await stopped(hand)
    assert (run.result, held.cancelled) == ("all done", [])


async def test_a_stop_after_the_end_changes_nothing(hands: Hands):
    held = Held(result=1)
    held.go.set()
    hand = await hands.worker(held)
    await hand.agent.start("r")
    ended = await hand.ended("r")
    assert await hand.agent.stop("r") == ended
    assert ended.state == "completed"


async def test_a_handler_has_its_time_to_clean_up(hands: Hands):
    async def work(run: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.2)
            await run.emit("cleaned up")

    hand = await running(hands, work, stop_grace=5.0)
    await hand.agent.stop("r", "enough")
    await stopped(hand)
    events = [event async for event in hand.agent.events("r", timeout=5)]
    assert [event.data for event in events[:-1]] == ["cleaned up"]


@pytest.mark.parametrize("kind", ["coroutine", "plain"])
async def test_a_handler_that_does_not_end_is_left_behind_after_its_grace(hands: Hands, kind: str):
    end, begun = threading.Event(), threading.Event()
    refused: list[str] = []

    async def stubborn(run: Any) -> None:
        begun.set()
        while not end.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        try:
            await run.emit("from the grave")
        except Exception as error:
            refused.append(type(error).__name__)

    def stubborn_plainly(run: Any) -> None:
        begun.set()
        end.wait(10)
        try:
            run.emit("from the grave")
        except Exception as error:
            refused.append(type(error).__name__)

    hand = await running(hands, stubborn if kind == "coroutine" else stubborn_plainly, stop_grace=0.2, concurrency=1)
    await until(begun.is_set, what="the handler")
    await hand.agent.stop("r", "enough")
    await stopped(hand)
    assert [event for event in hand.told(ServerWarning) if "left behind" in event.message]
    # its place is free, and it can do no harm
    await hand.agent.start("next")
    await hand.becomes("next", "running")
    end.set()
    await until(lambda: len(refused) == 1, what="the refusal")
    assert refused == ["LeaseLost"]
    assert (await hand.ended("next")).state == "completed"
    assert [event.kind async for event in hand.agent.events("r", timeout=5)] == ["end"]


async def test_a_handler_that_swallows_the_cancellation_is_stopped_all_the_same(hands: Hands):
    async def work(run: Any) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "what I had so far"
        return ""

    hand = await running(hands, work)
    await hand.agent.stop("r", "enough")
    assert (await stopped(hand)).result == "what I had so far"


async def test_a_handler_that_fails_while_it_cleans_up_is_stopped(hands: Hands):
    async def work(run: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("while cleaning up")

    hand = await running(hands, work)
    await hand.agent.stop("r", "enough")
    await stopped(hand)


async def test_a_handler_that_raises_stopped_by_itself_is_stopped(hands: Hands):
    async def work(run: Any) -> None:
        raise RunStopped("clean up and return: I want this")

    hand = await hands.worker(work)
    await hand.agent.start("r")
    assert (await hand.ended("r")).state == "stopped"


async def test_a_handler_that_cancels_itself_has_failed(hands: Hands):
    async def work(run: Any) -> None:
        raise asyncio.CancelledError

    hand = await hands.worker(work)
    await hand.agent.start("r")
    run = await hand.ended("r")
    assert (run.state, run.reason) == ("failed", "the handler was cancelled")
