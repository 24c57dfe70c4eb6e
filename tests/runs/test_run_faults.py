"""At every step of every operation on runs: reply dropped, connection cut, silence, caller cancelled, a request that is
executed too late, an error reply.

Then: one end and one end event each, events once and in order, indexes that agree with the records, nothing held, heard
or expected by nobody; what was taken by somebody who left is taken by the next; and what the caller was told is true.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis
from run_fault_operations import OPERATIONS
from run_fault_outbox import owner_goes_on
from run_fault_plan import SINGLE, Always, RunPlan
from run_fault_world import BASE, World
from run_model_audit import View

from holdfast import Holdfast, HoldfastError, Indeterminate, ServerFull, Unavailable
from holdfast.engine.flow import Sleep
from holdfast.engine.scripts import Scripts
from holdfast.runs import owning
from holdfast.runs.feed import Reader
from support.actors import Fleet
from support.backends import Backend
from support.conditions import until
from support.depth import DEEP
from support.faults import FAULTS, every_pair, every_step, install, worth_a_thread
from support.mutants import Edited

QUICK = {"call_timeout": 0.3, "retry_for": 2.0}
TOLD = (Indeterminate, Unavailable, asyncio.CancelledError, KeyboardInterrupt)


@pytest.fixture
def server(valkey: Backend) -> Iterator[redis.Redis]:
    client = valkey.owner.client()
    yield client
    client.close()


@pytest.fixture
async def crew(valkey: Backend, api: str) -> AsyncIterator[Fleet]:
    made = Fleet(valkey.url, api)
    yield made
    await made.close()


def cancellation(api: str) -> type[BaseException]:
    return asyncio.CancelledError if api == "async" else KeyboardInterrupt


async def check(w: World, error: BaseException | None) -> None:
    """Whatever happened: what was said is true, and the others can go on."""
    if w.reader is not None:
        await w.subject.do(lambda hf: w.reader.leave(hf._open))
    # Also that of whoever read the last one to its end: nobody waits for the answer when it leaves.
    await until(lambda: not w.server.pubsub_shardchannels("*ev:*"), within=2, what="the end of the subscription")
    await w.quiet()
    view = w.view()
    view.check()
    if w.done is not None and error is None:
        assert w.done(view), "it returned, and what it is for did not happen"
    if w.done is not None and isinstance(error, Unavailable):
        assert not w.done(view), "it said that nothing was done"
    w.no_leak()
    w.stored(view)
    await owned_or_back(w, error)
    await w.finish()
    view = w.view()
    w.stored(view)
    await w.ended_once(view)


async def owned_or_back(w: World, error: BaseException | None) -> None:
    """What the subject believes to own it owns, and it can go on; what it was never told of is given back."""
    client = w.subject.hf._core.client_id
    if w.given is not None and not w.given.hold.over:
        view = w.view()
        (mine,) = view.owned(client)
        assert (mine.token, mine.number["fence"]) == (w.given.hold.token, w.given.hold.fence)
        assert mine.number["attempt"] == w.given.attempt
        assert await w.settle(w.subject, w.given, 8, [], "completed") in ("completed", "stopped")
    elif isinstance(error, (asyncio.CancelledError, KeyboardInterrupt)):
        assert not w.view().owned(client), "what was taken was not given back"
    else:  # nobody knows of it: its time runs out
        w.run_out(w.view().owned(client))


async def run_with(
    crew: Fleet, server: redis.Redis, bystander: Any, plan: RunPlan, operation: str, lease: float = 5.0,
    scripts: Scripts | None = None,
    **settings: Any,
) -> bool:  # fmt: skip
    """One run of one operation with one plan. Answers whether the plan was met."""
    server.flushall()
    client = await crew.client(**{**QUICK, **settings})
    if scripts is not None:
        client._core.scripts = bystander.hf._core.scripts = scripts
    subject = await crew.actor(client)
    world = World(server, subject, bystander, plan)
    world.lease = lease
    error: BaseException | None = None
    try:
        try:
            await OPERATIONS[operation](world)
        except TOLD as told:
            error = told
        plan.faults, plan.told = {}, error
        await check(world, error)
    except AssertionError as problem:
        raise AssertionError(f"{operation} with {plan.hits}, which ended with {error!r}: {problem}") from problem
    finally:
        plan.faults = {}
        server.flushall()
    await subject.stop()
    crew._actors.remove(subject)
    await crew.close_client(client)
    return bool(plan.hits)


# What an error reply means is decided in one place for both twins.
ON_THREADS = [fault for fault in (*FAULTS, "late") if DEEP or worth_a_thread(fault)]


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_every_single_fault(crew: Fleet, server: redis.Redis, api: str, operation: str):
    bystander = await crew.actor()
    for fault in SINGLE if api == "async" else ON_THREADS:
        steps = 0
        for faults in every_step(fault):
            plan = RunPlan(faults, cancellation(api))
            if not await run_with(crew, server, bystander, plan, operation):
                break
            steps += 1
        assert steps >= 1


PAIRS = (
    ("reply dropped", "reply dropped"), ("reply dropped", "cancel after"), ("reply dropped", "late"),
    ("late", "reply dropped"), ("silent", "reply dropped"), ("cut before", "cancel before"), ("silent", "silent"),
    ("NOSCRIPT", "reply dropped"), ("READONLY", "late"),
)  # fmt: skip
TWICE = ("start", "start_queued", "start_replacing", "start_joining", "settle_completed", "settle_returned",
         "settle_with_one_that_waits", "claim_new", "take")  # fmt: skip


@pytest.mark.parametrize("operation", TWICE)
async def test_every_pair_of_faults(crew: Fleet, server: redis.Redis, api: str, operation: str):
    bystander = await crew.actor()

    async def run(faults: dict[int, str]) -> int:
        plan = RunPlan(faults, cancellation(api))
        await run_with(crew, server, bystander, plan, operation)
        return len(plan.hits)

    for pair in PAIRS:
        if api == "sync" and not DEEP and not worth_a_thread(*pair):
            continue
        assert await every_pair(run, *pair, longest=4) >= 1


STAYING = ("cut before", "silent", "reply dropped", "LOADING")


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name != "read_what_comes"])
async def test_a_fault_that_stays_is_told_truthfully(valkey: Backend, server: redis.Redis, operation: str):
    """Cut or refused every time: surely not done. No reply every time: nobody can know. Never a wrong answer."""
    crew = Fleet(valkey.url, "async")
    bystander = await crew.actor()
    for fault in STAYING:
        plan, quick = RunPlan(Always(fault)), {"retry_for": 0.1, "call_timeout": 0.1}
        assert await run_with(crew, server, bystander, plan, operation, lease=0.4, **quick)
        surely_not = fault in ("cut before", "LOADING") and not operation.startswith("settle")
        assert isinstance(plan.told, Unavailable if surely_not else Indeterminate), f"{operation}: {plan.told!r}"
    await crew.close()


def unhanded(flow: Any) -> Sleep:
    flow.close()
    return Sleep(0)


BUGS: dict[str, tuple[str, str, Any]] = {
    "a repeated write is stored twice": (
        "write_events", "reply dropped", ("runs/write", "if number <= batch then", "if false then"),
    ),
    "a repeated end is not known": (
        "settle_completed", "reply dropped", ("runs/settle", "if token == ARGV[3] and", "if false and"),
    ),
    "a take is sent again": ("take_many", "reply dropped", ("runs/take", "retry: never", "retry: safe")),
    "a repeated claim meets itself": (
        "claim_new", "reply dropped", ("runs/claim", "if mine(ARGV[8]) then", "if false then"),
    ),
    "an end leaves its index": ("settle_completed", "silent", ("runs/_move", "call('ZREM', base .. place, id)", "")),
    "nobody gets the free slot": ("settle_with_one_that_waits", "silent", ("runs/_move", "    promote(key)\n", "")),
    "an end event is missing": ("stop_queued", "silent", ("runs/_move", "  announce(1, '')\n", "")),
    "the wish to stop is forgotten": (
        "settle_while_stopping", "silent", ("runs/settle", "if stop_at > 0 then", "if false then"),
    ),
    "a cancelled claim keeps it": ("claim_new", "cancel after", (owning, "Detach", unhanded)),
    "a cancelled take keeps it": ("take", "cancel after", (owning, "Detach", unhanded)),
    "a cancelled end is forgotten": ("settle_completed", "cancel before", (owning, "Detach", unhanded)),
    "a reader never leaves": ("read_what_is_stored", "silent", (Reader, "leave", lambda self, driver: None)),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
async def test_each_safeguard_is_needed(
    valkey: Backend, server: redis.Redis, monkeypatch: pytest.MonkeyPatch, bug: str
):
    """The same check, with a bug put back, fails."""
    operation, fault, place = BUGS[bug]
    scripts = None
    if isinstance(place[0], str):
        scripts = Edited([place])
    else:
        monkeypatch.setattr(*place)
    crew = Fleet(valkey.url, "async")
    bystander = await crew.actor()

    async def checked() -> None:
        for step in (0, 0, 1):  # the first time the server may not know the changed script yet
            await run_with(crew, server, bystander, RunPlan({step: fault}), operation, scripts=scripts)

    with pytest.raises((AssertionError, HoldfastError)):
        await asyncio.wait_for(checked(), 20)
    monkeypatch.undo()
    await crew.close()
    server.flushall()


# -- what an owner has emitted and not sent yet ---------------------------------------------------------------------


async def test_a_worker_whose_look_was_lost_looks_again_soon(valkey: Backend, server: redis.Redis):
    """Nobody knows that it is idle, so nobody would wake it."""
    async with Holdfast(valkey.url, **QUICK) as hf:
        agent = hf.runs("agent", lease=60)

        @hf.runner(agent)
        async def think(run: Any) -> int:
            return 7

        await agent.start("a")
        plan = RunPlan({0: "silent"})
        install(hf, plan)
        work = asyncio.create_task(hf.work())
        assert (await agent.wait("a", timeout=3)).result == 7
        assert [what for _, *what in plan.hits] == [["silent", "Send"]]
        hf.stop_work()
        await asyncio.wait_for(work, 5)


async def test_events_that_vanished_do_not_hang_the_server(valkey: Backend, server: redis.Redis):
    async with Holdfast(valkey.url, **QUICK) as hf:
        run = await hf.runs("agent", max_events=16).claim("a")
        for number in range(16):
            await run.emit(number)
        await run.flush()
        server.delete(f"{BASE}e:a")
        for number in range(16):
            await run.emit(number)
        await run.flush()
        await run._settle("completed", "")
        assert (await hf.runs("agent").get("a")).dropped >= 16


@pytest.mark.parametrize("fault", [fault for fault in SINGLE if fault not in ("CLUSTERDOWN", "TRYAGAIN")])
async def test_an_owner_that_goes_on_loses_and_repeats_nothing(valkey: Backend, server: redis.Redis, fault: str):
    """Cancelled, or without a reply, in the middle of flush, checkpoint, step and end: then it goes on."""
    for faults in every_step(fault):
        plan = RunPlan(faults)
        if not await owner_goes_on(valkey.url, server, plan):
            break
    assert plan.step >= 4


@pytest.mark.parametrize("pair", [("cancel after", "cancel after"), ("reply dropped", "cancel before"),
                                  ("cancel before", "late"), ("late", "cancel after")], ids=str)  # fmt: skip
async def test_an_owner_that_goes_on_after_two_faults(valkey: Backend, server: redis.Redis, pair: tuple[str, str]):
    async def run(faults: dict[int, str]) -> int:
        plan = RunPlan(faults)
        await owner_goes_on(valkey.url, server, plan)
        return len(plan.hits)

    assert await every_pair(run, *pair, longest=5) >= 3


async def test_many_events_are_stored_once_though_every_third_reply_is_lost(valkey: Backend, server: redis.Redis):
    plan = RunPlan(dict.fromkeys(range(0, 400, 3), "reply dropped"))
    async with Holdfast(valkey.url, **QUICK) as hf:
        agent = hf.runs("agent", emit_delay=0.001)
        run = await agent.claim("a")
        install(hf, plan)
        for number in range(3000):
            await run.emit(number)
            if number % 500 == 0:
                await asyncio.sleep(0.002)  # a quiet moment: what waits is sent
        await run._settle("completed", "")
    view = View(server, BASE)
    view.check()
    assert view.data("a") == list(range(3000))
    assert len(plan.hits) >= 2


async def test_what_a_full_server_refused_is_sent_when_there_is_room(valkey: Backend, server: redis.Redis):
    async with Holdfast(valkey.url, **QUICK) as hf:
        run = await hf.runs("agent", emit_delay=0.005).claim("a")
        plan = RunPlan(Always("OOM"))
        install(hf, plan)
        await run.emit("e0")
        await until(lambda: len(plan.hits) >= 1)
        with pytest.raises(ServerFull):
            await run.flush()
        await run.emit("e1")
        await until(lambda: len(plan.hits) >= 3)
        plan.faults = {}  # from here on nobody calls flush
        await run.emit("e2")
        await until(lambda: View(server, BASE).data("a") == ["e0", "e1", "e2"], within=3)
        await run.emit("e3")
        await until(lambda: View(server, BASE).data("a")[-1] == "e3", within=1)
        await run._settle("completed", "")
    View(server, BASE).check()
