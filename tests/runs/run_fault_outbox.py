"""An owner whose writes meet faults, and who goes on with what comes next, as a handler would."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import redis
from run_fault_plan import RunPlan
from run_fault_world import BASE
from run_model_audit import View

from holdfast import Holdfast, Indeterminate, Unavailable
from holdfast.engine.payload import decode
from support.faults import install

TOLD = (Indeterminate, Unavailable, asyncio.CancelledError)


async def through(call: Callable[[], Awaitable[Any]]) -> bool:
    """Whether it got through; if not, whoever called it goes on."""
    try:
        await call()
    except TOLD:
        return False
    return True


async def owner_goes_on(url: str, server: redis.Redis, plan: RunPlan) -> bool:
    """Emits, saves and ends. Then all events are there once and in order. Answers whether the plan was met."""
    server.flushall()
    async with Holdfast(url, call_timeout=0.3, retry_for=2.0) as hf:
        agent = hf.runs("agent", emit_delay=0.001)
        run = await agent.claim("a")
        install(hf, plan)
        for word in ("e0", "e1"):
            await run.emit(word)
        await through(run.flush)
        await run.emit("e2")
        saved = await through(lambda: run.checkpoint([1]))
        await run.emit("e3")
        stepped = await through(lambda: run.step("pay", lambda: "paid"))
        await run.emit("e4")
        at_step = View(server, BASE)
        if stepped:
            assert decode(at_step.steps["a"][b"pay"]) == "paid", plan.hits
        await end(run)
        plan.faults = {}
        while working := set(hf._open._background):
            await asyncio.wait(working, timeout=5)
        if plan.late:
            await hf._open.run(plan.deliver())
        assert not hf._core.holds, plan.hits
    view = View(server, BASE)
    view.check()
    assert view.data("a") == ["e0", "e1", "e2", "e3", "e4"], plan.hits
    assert view.runs["a"].state == "completed", plan.hits
    if saved:  # cancelled, it may not have been
        assert decode(view.runs["a"].fields[b"c"]) == [1], plan.hits
    return bool(plan.hits)


async def end(run: Any) -> None:
    """Until it is on its way: one that is cancelled after that goes on in the background."""
    while not run._given.hold.over:
        await through(lambda: run._settle("completed", ""))
