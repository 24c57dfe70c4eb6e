"""Runners: handlers as coroutine functions and as plain ones, results, errors, limits, what is told and what is found.

Stopping is in test_runner_stops.py, workers that end or die in test_runner_handover.py."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from run_crew import Hand, Hands, Held, never, until_told

from holdfast.events import RunFinished, RunQueued, RunStuck, RunTaken, ServerWarning
from support.conditions import until

KINDS = [("coroutine", "async"), ("plain", "async"), ("plain", "sync"), ("coroutine", "sync")]
both = pytest.mark.parametrize(("kind", "twin"), KINDS, ids=["-".join(kind) for kind in KINDS])


def handler(kind: str, body: Any) -> Any:
    """The same handler as a coroutine function or a plain one; the body is a generator of what to wait for."""

    async def think(run: Any) -> Any:
        return await drive(body(run), lambda waits: waits)

    def think_plainly(run: Any) -> Any:
        work = body(run)
        sent = None
        while True:
            try:
                sent = work.send(sent)
            except StopIteration as stop:
                return stop.value

    return think if kind == "coroutine" else think_plainly


async def drive(work: Any, wait: Any) -> Any:
    sent = None
    while True:
        try:
            sent = await wait(work.send(sent))
        except StopIteration as stop:
            return stop.value


# -- what comes of it -----------------------------------------------------------------------------------------------


@both
async def test_a_handler_has_all_that_a_run_has_and_its_return_value_is_the_result(hands: Hands, kind: str, twin: str):
    def work(run: Any) -> Any:
        yield run.emit({"saw": run.input})
        done = yield run.step("double", lambda: run.input * 2)
        yield run.checkpoint({"done": done})
        yield run.emit("last")
        return {"id": run.id, "key": run.key, "kind": run.kind, "attempt": run.attempt, "saved": run.saved,
                "done": done, "steps": list(run.steps)}  # fmt: skip

    hand = await hands.worker(handler(kind, work), twin)
    await hand.do("start", "r", 21, key="k")
    run = await hand.ended("r")
    assert run.state == "completed", run.reason
    assert run.result == {"id": "r", "key": "k", "kind": "agent", "attempt": 1, "saved": {"done": 42}, "done": 42,
                          "steps": ["double"]}  # fmt: skip
    reader = await hands.client()
    events = [event async for event in reader.agent.events("r", timeout=5)]
    assert [event.data for event in events[:-1]] == [{"saw": 21}, "last"]
    assert events[-1].data == {"state": "completed", "reason": "", "result": run.result}


@both
async def test_a_handler_that_raises_has_failed_with_that_reason(hands: Hands, kind: str, twin: str):
    def work(run: Any) -> Any:
        yield run.emit("before")
        raise LookupError("no tool ☃")

    hand = await hands.worker(handler(kind, work), twin)
    await hand.do("start", "r")
    run = await hand.ended("r")
    assert (run.state, run.reason, run.result, run.attempt) == ("failed", "LookupError: no tool ☃", None, 1)
    await until(lambda: hand.told(RunFinished), what="the word")
    (finished,) = hand.told(RunFinished)
    assert (finished.run, finished.state, finished.reason) == ("r", "failed", "LookupError: no tool ☃")


@pytest.mark.parametrize("kind", ["coroutine", "plain"])
async def test_a_result_may_be_left_on_the_run_and_what_is_returned_goes_first(hands: Hands, kind: str):
    def work(run: Any) -> Any:
        run.result = "left"
        yield run.flush()
        return run.input

    hand = await hands.worker(handler(kind, work))
    for name, value, result in (("a", None, "left"), ("b", "returned", "returned"), ("c", 0, 0)):
        await hand.agent.start(name, value)
        assert (await hand.ended(name)).result == result


@pytest.mark.parametrize("kind", ["coroutine", "plain"])
async def test_a_result_that_cannot_be_stored_is_a_failure(hands: Hands, kind: str):
    def work(run: Any) -> Any:
        yield run.flush()
        return object()

    hand = await hands.worker(handler(kind, work))
    await hand.agent.start("r")
    run = await hand.ended("r")
    assert (run.state, run.reason.split(":")[0]) == ("failed", "InvalidPayload")


@pytest.mark.parametrize("kind", ["coroutine", "plain"])
async def test_a_handler_that_exits_ends_its_run_and_not_the_worker(hands: Hands, kind: str):
    def work(run: Any) -> Any:
        yield run.flush()
        if run.id == "bad":
            raise SystemExit(3)

    hand = await hands.worker(handler(kind, work))
    await hand.agent.start("bad")
    run = await hand.ended("bad")
    assert run.state == "failed"
    assert "SystemExit" in run.reason
    await hand.agent.start("good")
    assert (await hand.ended("good")).state == "completed"


async def test_a_handler_that_takes_too_long_has_failed(hands: Hands):
    held = Held()
    hand = await hands.worker(held, timeout=0.2)
    await hand.agent.start("r")
    run = await hand.ended("r")
    assert (run.state, run.reason) == ("failed", "TimeoutError: the handler took longer than 0.2 s")
    assert held.cancelled == ["r"]


async def test_a_plain_handler_that_takes_too_long_is_left_behind(hands: Hands):
    over = threading.Event()

    def work(run: Any) -> None:
        if run.id == "slow":
            until_told(run)
            over.set()

    hand = await hands.worker(work, timeout=0.2, stop_grace=0.1, concurrency=1)
    await hand.agent.start("slow")
    await hand.agent.start("next")
    run = await hand.ended("slow")
    assert (run.state, run.reason.split(":")[0]) == ("failed", "TimeoutError")
    assert (await hand.ended("next")).state == "completed"
    await until(over.is_set, what="the end of the handler, whose run is lost")


@pytest.mark.parametrize("twin", ["async", "sync"])
async def test_runs_are_executed_handed_over_and_stopped_on_every_kind_of_server(everywhere: Hands, twin: str):
    begun: list[str] = []

    def work(run: Any) -> Any:
        begun.append(run.id)
        yield run.emit(run.input)
        if run.input == "long":
            yield held(run)
        return run.input

    def held(run: Any) -> Any:
        return asyncio.Event().wait() if kind == "coroutine" else until_told(run)

    kind = "coroutine" if twin == "async" else "plain"
    hand = await everywhere.worker(handler(kind, work), twin, runs={"lease": 5.0})
    other = await everywhere.client(twin)
    await other.do("start", "quick", "short", key="k")
    assert (await hand.ended("quick")).result == "short"
    await other.do("start", "long", "long", key="k")
    await until(lambda: "long" in begun, what="the handler")
    await other.do("start", "next", "short", key="k", conflict="replace")
    assert (await hand.ended("next")).result == "short"
    run = await other.do("get", "long")
    assert (run.state, run.reason) == ("stopped", "replaced by next")


# -- limits ---------------------------------------------------------------------------------------------------------


async def test_no_more_than_concurrency_at_once_and_those_that_waited_longest_first(hands: Hands):
    held = Held()
    hand = await hands.worker(held, concurrency=2)
    for number in range(5):
        await hand.agent.start(f"r{number}")
    await until(lambda: len(held.log) == 2, what="two")
    await never(lambda: len(held.log) > 2, 0.2, "more than two at once")
    assert await hand.agent.totals() == {"queued": 3, "running": 2, "stopping": 0, "completed": 0, "failed": 0,
                                         "stopped": 0}  # fmt: skip
    held.go.set()
    await until(lambda: len(held.log) == 5, what="all of them")
    assert held.log == [f"r{number}" for number in range(5)]


async def test_a_full_worker_leaves_the_rest_to_another(hands: Hands):
    log: list[Any] = []
    one, two = Held("one", log=log), Held("two", log=log)
    first = await hands.worker(one, concurrency=1)
    await hands.worker(two, concurrency=1)
    for name in "ab":
        await first.agent.start(name)
    await until(lambda: len(log) == 2, within=2, what="both")
    assert {name for name, *_ in log} == {"one", "two"}
    one.go.set()
    two.go.set()


@pytest.mark.parametrize("slots", [1, 2])
async def test_no_more_than_slots_of_a_key_at_once_in_all_workers(hands: Hands, slots: int):
    active: list[str] = []
    most: list[int] = []

    async def work(run: Any) -> None:
        active.append(run.id)
        most.append(len(active))
        await asyncio.sleep(0.02)
        active.remove(run.id)

    first = await hands.worker(work, runs={"slots": slots})
    await hands.worker(work, runs={"slots": slots})
    for number in range(8):
        await first.agent.start(f"r{number}", key="k")
    for number in range(8):
        await first.ended(f"r{number}")
    assert max(most) == slots


async def test_a_run_that_waits_for_its_key_does_not_hold_up_others(hands: Hands):
    held = Held()
    hand = await hands.worker(held, concurrency=3)
    await hand.agent.start("a", key="k")
    await hand.agent.start("b", key="k")
    await hand.agent.start("c", key="l")
    await until(lambda: held.log == ["a", "c"], what="those with a slot")
    held.go.set()
    assert (await hand.ended("b")).state == "completed"


async def test_many_runs_are_each_executed_once(hands: Hands):
    log: list[str] = []

    async def work(run: Any) -> None:
        log.append(run.id)

    first = await hands.worker(work, concurrency=5)
    await hands.worker(work, concurrency=5)
    names = [f"r{number}" for number in range(100)]
    await asyncio.gather(*(first.agent.start(name) for name in names))
    await until(lambda: len(log) >= 100, what="all of them")
    assert sorted(log) == sorted(names)


# -- told and not told ----------------------------------------------------------------------------------------------


async def test_a_worker_is_told_of_a_run_at_once(hands: Hands):
    started: list[float] = []

    async def work(run: Any) -> None:
        started.append(time.monotonic())

    await hands.worker(work, runs={"lease": 30.0})
    other = await hands.client()
    for number in range(3):
        await other.agent.start(f"r{number}")
        await until(lambda number=number: len(started) > number, within=2, what="the handler")


async def test_a_run_that_no_message_told_of_is_found_all_the_same(hands: Hands):
    held = Held()
    hand = await hands.worker(held, runs={"lease": 1.0})
    hand.hf._core.mailbox.workers[hand.worker._token] = lambda detail: None
    await hand.agent.start("r")
    await until(lambda: held.log, within=3, what="a look without a reason")
    held.go.set()


async def test_what_was_started_before_anybody_works_is_taken(hands: Hands):
    client = await hands.client()
    for number in range(3):
        await client.agent.start(f"r{number}", number)

    async def work(run: Any) -> int:
        return run.input

    await hands.worker(work)
    assert [(await client.ended(f"r{number}")).result for number in range(3)] == [0, 1, 2]


async def test_one_worker_may_have_several_collections(hands: Hands):
    hand = await hands.client(drain=1.0)
    flows, log = hand.hf.runs("workflow", kind="workflow"), []

    @hand.hf.runner(hand.agent)
    async def think(run: Any) -> None:
        log.append(("agent", run.id))

    @hand.hf.runner(flows)
    def step(run: Any) -> None:
        log.append(("workflow", run.id))

    hand.start()
    await hand.agent.start("r")
    await flows.start("r")
    await until(lambda: len(log) == 2, what="both")
    assert set(log) == {("agent", "r"), ("workflow", "r")}
    await hand.stop()


async def test_observers_are_told_what_happens(hands: Hands):
    async def work(run: Any) -> None:
        return None

    hand = await hands.worker(work)
    await hand.agent.start("r", key="k")
    await until(lambda: hand.told(RunFinished), what="its end")
    (queued,), (taken,), (finished,) = hand.told(RunQueued), hand.told(RunTaken), hand.told(RunFinished)
    assert (queued.run, queued.key, taken.run, taken.attempt) == ("r", "k", "r", 1)
    assert (finished.run, finished.key, finished.state, finished.attempt) == ("r", "k", "completed", 1)
    assert taken.fence > 0
    assert finished.held >= 0


# -- stuck ----------------------------------------------------------------------------------------------------------


async def stuck_one(hands: Hands, **options: Any) -> tuple[Hand, Held]:
    held = Held()
    hand = await hands.worker(held, runs={"stuck_after": 0.3, "lease": 0.4}, settings={"sweep": 0.1}, **options)
    await hand.agent.start("r")
    await until(lambda: hand.told(RunStuck), what="the report")
    assert [(event.run, event.seconds) for event in hand.told(RunStuck)] == [("r", 0.3)]
    return hand, held


async def test_a_run_without_progress_is_reported_once_and_goes_on(hands: Hands):
    hand, held = await stuck_one(hands)
    await never(lambda: len(hand.told(RunStuck)) > 1, 0.4, "it was reported again")
    assert (await hand.agent.get("r")).state == "running"
    # progress makes that undone
    await held.runs[0].emit(1)
    await held.runs[0].flush()
    await until(lambda: len(hand.told(RunStuck)) == 2, what="another report")
    held.go.set()
    assert (await hand.ended("r")).state == "completed"


async def test_a_run_without_progress_is_stopped_where_that_is_wanted(hands: Hands):
    hand, held = await stuck_one(hands, stop_stuck=True)
    run = await hand.ended("r")
    assert (run.state, run.reason, held.cancelled) == ("stopped", "stuck", ["r"])


# -- what cannot be read --------------------------------------------------------------------------------------------


async def test_an_input_that_cannot_be_read_fails_its_run_and_not_its_neighbours(hands: Hands):
    client = await hands.client()
    await client.agent.start("bad", 1)
    await client.agent.start("good", 2)
    hands.server.hset(client.agent._spec.place("bad").key, "i", b"\xff\xfe")
    held = Held()
    held.go.set()
    hand = await hands.worker(held)
    run = await client.ended("bad")
    assert (run.state, run.reason.split(":")[0]) == ("failed", "cannot be read")
    assert (await client.ended("good")).state == "completed"
    assert held.log == ["good"]
    assert [event for event in hand.told(ServerWarning) if "bad" in event.message]


async def test_an_input_of_a_newer_version_is_left_for_a_newer_worker(hands: Hands):
    client = await hands.client(runs={"max_attempts": 1})
    await client.agent.start("new", 1)
    key = client.agent._spec.place("new").key
    hands.server.hset(key, "i", b"\x1f" + b"x")
    held = Held(result="old")
    held.go.set()
    hand = await hands.worker(held)
    await until(lambda: hand.told(ServerWarning), what="the warning")
    run = await client.becomes("new", "queued")
    assert (run.attempt, held.log) == (1, [])
    # a newer one reads it, and the attempts before it do not count
    hands.server.hset(key, "i", b"\x01\x05")
    assert (await client.agent.claim("new")).input == 5
