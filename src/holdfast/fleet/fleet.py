"""The fleet: every process that uses the same server and prefix, and what is known of all of them together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.engine.aio import AsyncDriver
from holdfast.engine.core import Core
from holdfast.fleet import flows
from holdfast.fleet.record import Action, Named, Process, Series


class Fleet:
    """What the processes of a fleet reported. Reached as `Holdfast.fleet`.

    Each open client reports every `report` seconds (a setting; 0: never), and once more when it closes: what it uses,
    what it holds, and what it did since. A report whose reply is lost is counted once. What a process did after its
    last report is not counted when it is killed: these numbers are for looking at, not for accounts.
    """

    def __init__(self, core: Core, driver: Callable[[], AsyncDriver]) -> None:
        self._core = core
        self._driver = driver

    async def processes(self, count: int = 1000) -> list[Process]:
        """Those heard of in the last hour that did not say goodbye, the last heard of first."""
        return await self._driver().run(flows.processes(self._core, count))

    async def names(self) -> list[Named]:
        """Buffers, collections of runs and so on that were used in the last 30 days, at most 10 000."""
        return await self._driver().run(flows.names(self._core))

    async def totals(self) -> dict[str, int]:
        """Everything that was counted, since the first report: names as in `holdfast.observe.Counters`."""
        return await self._driver().run(flows.totals(self._core))

    async def series(self, seconds: float = 1800.0) -> Series:
        """What was done in the last seconds: in pieces of 10 s for up to an hour, else of 5 minutes, up to two days."""
        return await self._driver().run(flows.series(self._core, seconds))

    async def gauge(self, gauges: Mapping[str, float]) -> None:
        """Add measurements to the current piece of time, in place of those of the same name."""
        await self._driver().run(flows.gauge(self._core, gauges))

    async def turn(self, seconds: float) -> bool:
        """True for one caller of the whole fleet in so many seconds: who measures for all of them."""
        return await self._driver().run(flows.turn(self._core, seconds))

    async def record(self, action: str, target: str, reason: str, *, by: str = "") -> str:
        """Write into the audit log that somebody is about to do something. Answers the entry's id, for `outcome`.

        The last 10 000 are kept, for 90 days."""
        return await self._driver().run(flows.record(self._core, action, target, reason, by))

    async def outcome(self, action: str, outcome: str) -> None:
        """Write down what came of a recorded action."""
        await self._driver().run(flows.outcome(self._core, action, outcome))

    async def actions(self, count: int = 100, *, before: str | None = None) -> list[Action]:
        """The audit log, newest first; `before` is the id of the last one of the page before."""
        return await self._driver().run(flows.actions(self._core, count, before))
