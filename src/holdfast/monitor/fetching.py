"""Puts together what looks at pages for a monitor."""

from __future__ import annotations

from typing import Any

from holdfast.engine.aio import AsyncDriver
from holdfast.engine.core import Core
from holdfast.keys import Id
from holdfast.locks.lock import Lock
from holdfast.locks.spec import make_spec
from holdfast.monitor.fetcher import Fetcher
from holdfast.monitor.monitor import Monitor
from holdfast.monitor.outgoing import Outgoing
from holdfast.monitor.parts import MonitorParts
from holdfast.monitor.spec import MonitorSpec
from holdfast.once import flows
from holdfast.once.spec import Space


class Fleet:
    """What a fetcher needs of the fleet: one of all processes does it, and one at a time asks a host."""

    def __init__(self, core: Core, driver: AsyncDriver) -> None:
        self._core = core
        self._driver = driver

    async def once(self, space: str, id: Any, *, within: float) -> bool:
        """True for the first who asks within so many seconds."""
        (new,) = await self._driver.run(flows.mark(self._core, Space(self._core, space), [id], within, "raise"))
        return bool(new)

    def lock(self, name: Id, *, wait: float | None = None) -> Lock:
        """A mutex."""
        spec = make_spec(
            self._core, "lock", name, weight=1, limit=1, ttl=None, fair=True, renew=True, max_hold=None, replicas=0,
            replica_timeout=1.0, reentrant=False,
        )  # fmt: skip
        return Lock(self._core, self._driver, spec, name, wait)


def fetcher(core: Core, driver: AsyncDriver, spec: MonitorSpec, parts: MonitorParts, outgoing: Outgoing) -> Fetcher:
    monitor = Monitor(core, lambda: driver, spec, parts)
    return Fetcher(
        Fleet(core, driver), monitor, outgoing, parts.fetches, full_after=min(3600.0, spec.keep / 2), events=core.events
    )
