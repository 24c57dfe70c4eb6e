"""A small application to try things out with: what is sent from the dashboard is absorbed, run and told here.

    holdfast up --playground

It absorbs the buffer `messages` into long-term memory, runs `agent`, which answers word by word, and watches `things`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

from holdfast import ActiveRun, Delivery, Holdfast
from holdfast.memory import Memory, MonitorStore

log = logging.getLogger("holdfast.playground")


def make() -> Holdfast:
    """The client, with all that it works on. Where its server and its database are is in the environment."""
    memory = Memory(os.environ.get("HOLDFAST_NODE_STORE") or "sqlite:///playground.db")
    memory.store.open()
    hf = Holdfast(name="playground")
    hf.absorber(hf.buffer("messages"), threshold=3, max_age=2.0)(memory.absorb)
    hf.runner(hf.runs("agent"), resumable=True)(answer)
    hf.monitor("things", store=MonitorStore(memory)).subscriber("log", first=True)(told)
    return hf


async def answer(run: ActiveRun) -> dict[str, Any]:
    """Says what it was asked, a word at a time, slowly enough to be stopped. Another process goes on where it was."""
    prompt = run.input.get("prompt", "") if isinstance(run.input, dict) else str(run.input or "")
    words = (prompt or "nothing was asked").split()[:200]
    for number in range(run.saved or 0, len(words)):
        await run.emit({"token": f"{words[number]} "})
        await run.checkpoint(number + 1)
        await asyncio.sleep(0.3)
    return {"words": len(words)}


async def told(delivery: Delivery) -> None:
    """Whoever subscribes is told of each change, in order."""
    for change in delivery.changes:
        log.info("%s %s: %r is now %r", change.source, change.key, change.before, change.after)
