"""Measures what waits, while somebody looks: from totals and indexes, never by scanning."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from holdfast import HoldfastError

if TYPE_CHECKING:
    from holdfast.node.state import Node

log = logging.getLogger("holdfast.node")
AT_ONCE = 4
MOST = 100
"""Collections of each kind that are measured."""
Sample = dict[str, Any]


class Sampler:
    """One measurement for all who look: pages, metrics, and the fleet's own series."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.latest: Sample = {}
        """The last one; empty before the first."""
        self._at = float("-inf")
        self._measuring: asyncio.Task[Sample] | None = None
        self._background: asyncio.Task[None] | None = None

    async def fresh(self) -> Sample:
        """One that is not older than the interval. Raises HoldfastError if the server cannot be asked."""
        if time.monotonic() - self._at < self._node.config.sample and self.latest:
            return self.latest
        if self._measuring is None or self._measuring.done():
            self._measuring = asyncio.create_task(self._measure())
            # Whoever asked may have lost patience meanwhile.
            self._measuring.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._measuring)

    def last(self, seconds: float) -> Sample:
        """The last one, if it is not older than this; else empty."""
        return self.latest if time.monotonic() - self._at < seconds else {}

    async def watch(self) -> AsyncGenerator[Sample, None]:
        """Each new one, until nobody asks any more. While the server cannot be reached, the last one stays."""
        while not self._node.closing:
            try:
                yield await self.fresh()
            except HoldfastError:
                if self.latest:
                    yield self.latest
            await asyncio.sleep(self._node.config.sample)

    def start(self) -> None:
        """Measure by itself, so that the history has no gaps; one node of the fleet does at a time."""
        self._background = asyncio.create_task(self._keep_series())

    def close(self) -> None:
        if self._background is not None:
            self._background.cancel()  # what is being measured is for requests that still have their time

    async def _keep_series(self) -> None:
        while True:
            try:
                if await self._node.hf.fleet.turn(9.5):
                    await self._node.hf.fleet.gauge(gauges(await self.fresh()))
            except HoldfastError:
                pass  # the pages say so
            except Exception:
                log.exception("measuring failed; it goes on")
            await asyncio.sleep(5.0)

    async def _measure(self) -> Sample:
        node = self._node
        found = await node.hf.fleet.names()
        names: dict[str, list[str]] = {}
        for one in found:  # the last used first
            names.setdefault(one.kind, []).append(one.name)

        async def each(kind: str, ask: Callable[[str], Awaitable[Any]]) -> dict[str, Any]:
            chosen = names.get(kind, [])[:MOST]
            room = asyncio.Semaphore(AT_ONCE)

            async def one(name: str) -> Any:
                async with room:  # so that requests get between
                    return await ask(name)

            answers = await asyncio.gather(*map(one, chosen), return_exceptions=True)
            return {
                name: answer
                for name, answer in zip(chosen, answers, strict=True)
                if not isinstance(answer, BaseException)
            }

        processes = await node.hf.fleet.processes()
        sample = {
            "at": await node.now(),
            "buffers": await each("buffer", self._buffer),
            "runs": await each("runs", lambda name: node.runs(name).totals()),
            "monitors": await each("monitor", self._monitor),
            "locks": await node.hf.count_locks(),
            "processes": {
                "alive": sum(one.alive for one in processes), "gone": sum(not one.alive for one in processes)
            },
            "totals": await node.hf.fleet.totals(),
            "left_out": sum(max(0, len(many) - MOST) for many in names.values()),
        }  # fmt: skip
        self.latest, self._at = sample, time.monotonic()
        return sample

    async def _buffer(self, name: str) -> Sample:
        totals = await self._node.buffer(name).totals()
        return {
            "users": totals.users, "due": totals.due, "oldest": totals.oldest, "dead_letters": totals.dead_letters,
            "idle_workers": totals.idle_workers, "counts": totals.counts,
        }  # fmt: skip

    async def _monitor(self, name: str) -> Sample:
        status = await self._node.monitor(name).status()
        return {
            "changes": status.changes, "dead_letters": status.dead_letters, "waiting": status.waiting,
            "failing": status.failing,
        }  # fmt: skip


def gauges(sample: Sample) -> dict[str, float]:
    """What is kept of a sample over time, over all collections."""
    buffers, runs, monitors = (list(sample[kind].values()) for kind in ("buffers", "runs", "monitors"))
    states = ("queued", "running", "stopping")
    return {
        "users": sum(one["users"] for one in buffers),
        "due": sum(one["due"] for one in buffers),
        "oldest": max((one["oldest"] or 0.0 for one in buffers), default=0.0),
        "dead": sum(one["dead_letters"] for one in (*buffers, *monitors)),
        **{f"runs.{state}": sum(one.get(state, 0) for one in runs) for state in states},
        "undelivered": sum(sum(one["waiting"].values()) for one in monitors),
        "locks": sample["locks"],
        "alive": sample["processes"]["alive"],
        "gone": sample["processes"]["gone"],
    }
