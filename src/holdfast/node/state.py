"""What one node is: its client, the collections it looks at, and who asks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import HTTPConnection

from holdfast import Buffer, ConfigurationError, Holdfast, HoldfastError, Monitor, Runs, Sessions
from holdfast.node.problems import Refused
from holdfast.settings import Collections, NodeSettings

if TYPE_CHECKING:
    from holdfast.node.access import Access
    from holdfast.node.sampler import Sampler

T = TypeVar("T")
KNOWN = 1000
"""Collections that are remembered: names come from outside."""


class Node:
    """One for each running node, or each app that a dashboard is mounted in."""

    def __init__(
        self,
        hf: Holdfast,
        config: NodeSettings,
        access: Access,
        store: Any = None,
        collections: Collections | None = None,
    ) -> None:
        from holdfast.node.sampler import Sampler

        self.hf = hf
        self.config = config
        self.access = access
        self.store = store
        """A `holdfast.memory.MonitorStore`: subscribers, history and push log of monitors. None: without."""
        self.sampler: Sampler = Sampler(self)
        self.registry: Any = None
        """What this process counts for Prometheus."""
        self.closing = False
        self._known: dict[tuple[str, str], Any] = {}
        self._streams: dict[asyncio.Task[Any], str] = {}
        self.candidates: dict[str, tuple[float, deque[Any]]] = {}
        """By buffer: when it was looked for whom to take from, and who is left of them."""
        self.idle: set[str] = set()
        """Buffers in which nobody was found."""
        self._waiting: set[asyncio.Task[Any]] = set()
        self._begun: set[asyncio.Future[Any]] = set()
        self._collections: Collections = collections or {}
        self._check_collections()

    # -- collections --------------------------------------------------------------------------------------------

    def buffer(self, name: str) -> Buffer:
        """Raises ConfigurationError for a name that cannot be one, as the following do."""
        return self._get("buffer", name, lambda: self.hf.buffer(name, **self._options("buffers", name)))

    def runs(self, name: str) -> Runs:
        return self._get("runs", name, lambda: self.hf.runs(name, **self._options("runs", name)))

    def sessions(self, name: str) -> Sessions:
        return self._get("sessions", name, lambda: self.hf.sessions(name, **self._options("sessions", name)))

    def monitor(self, name: str) -> Monitor:
        # Anew: the application may make it meanwhile.
        return self.hf.look_at_monitor(name, store=self.store, **self._options("monitors", name))

    def _options(self, kind: str, name: str) -> dict[str, Any]:
        """As the configuration file says: what an application would pass in its code."""
        return dict(self._collections.get(kind, {}).get(name, {}))

    def _check_collections(self) -> None:
        made = {"buffers": self.buffer, "runs": self.runs, "sessions": self.sessions, "monitors": self.monitor}
        for kind, tables in self._collections.items():
            if kind not in made:
                raise ConfigurationError(f"name collections by {', '.join(made)}, not {kind!r}")
            for name in tables:
                try:
                    made[kind](name)
                except (HoldfastError, TypeError) as error:
                    raise ConfigurationError(f"mend [{kind}.{name}]: {error}") from None

    def _get(self, kind: str, name: str, make: Callable[[], T]) -> T:
        found: T | None = self._known.get((kind, name))
        if found is None:
            if len(self._known) >= KNOWN:
                self._known.clear()
            found = self._known[kind, name] = make()
        return found

    async def names(self, kind: str) -> list[str]:
        """Every collection of this kind that the fleet knows, in order."""
        return sorted(one.name for one in await self.hf.fleet.names() if one.kind == kind)

    async def now(self) -> float:
        """Seconds since 1970 by the server's clock."""
        seconds, micros = await self.hf.command("TIME")
        return int(seconds) + int(micros) / 1_000_000

    # -- streams ------------------------------------------------------------------------------------------------

    async def streaming(self, caller: str, work: Callable[[], Any]) -> None:
        """Run what sends a stream. It ends when the node does, without an error."""
        task = asyncio.current_task()
        assert task is not None
        self._streams[task] = caller
        try:
            await work()
        except asyncio.CancelledError:
            if not self.closing:
                raise
        finally:
            self._streams.pop(task, None)

    async def patiently(self, work: Awaitable[T]) -> T:
        """Wait for something that may take its time. When the node ends it is given up, and said so."""
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        try:
            return await work
        except asyncio.CancelledError:
            if not self.closing:
                raise
            raise Refused(503, "stopping", "try again: this node is stopping", {"Retry-After": "1"}) from None
        finally:
            self._waiting.discard(task)

    async def to_its_end(self, work: Awaitable[T], begun: asyncio.Event) -> T:
        """Wait for something as `patiently` does, until it has begun. From then on it goes on to its end, whatever
        becomes of the request: who tries again cannot know how far it came."""
        task = asyncio.ensure_future(work)
        self._begun.add(task)
        task.add_done_callback(self._ended)
        waiting = asyncio.create_task(begun.wait())
        try:
            await self.patiently(asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED))
        except (Refused, asyncio.CancelledError) as error:
            if not begun.is_set():
                task.cancel()
            if not begun.is_set() or not isinstance(error, Refused):
                raise
        finally:
            waiting.cancel()
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._begun.discard(task)
        if not task.cancelled():
            task.exception()  # the request may be gone

    async def settled(self, seconds: float) -> None:
        """What has begun has ended, or the time is over."""
        if self._begun:
            await asyncio.wait(set(self._begun), timeout=seconds)

    @property
    def streams(self) -> int:
        """How many are open."""
        return len(self._streams)

    def close(self) -> None:
        """End the streams: whoever reads them comes back to another node, or later."""
        self.closing = True
        self.sampler.close()
        for task in [*self._streams, *self._waiting]:
            task.cancel()

    async def ready(self) -> dict[str, object]:
        """Raises HoldfastError unless the server answers in good time."""
        async with asyncio.timeout(5.0):
            return {"round_trip_ms": round(await self.hf.ping() * 1000, 3)}

    async def quietly(self, action: str, outcome: str) -> None:
        """Write down what came of an action; that it was done is written already."""
        with suppress(HoldfastError):
            await self.hf.fleet.outcome(action, outcome)


def node_of(connection: HTTPConnection) -> Node:
    """The node that this request came to."""
    node: Node = connection.scope["holdfast.node"]
    return node
