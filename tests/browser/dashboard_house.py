"""A real server, a fleet that works on it, and a node that serves the dashboard: what the browser tests look at."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast import Batch, Delivery, Holdfast
from holdfast.memory import MonitorStore
from holdfast.node.app import create, running
from holdfast.node.state import Node
from holdfast.testing import LocalServer

T = TypeVar("T")
HOSTILE: tuple[str | bytes, ...] = (
    "<img src=x onerror=alert(1)>",
    '"><script>alert(1)</script>',
    "';alert(1)//",
    "{{7*7}}",
    "javascript:alert(1)",
    "invoice\u202egnp.exe",
    "line\nbreak\tand\x00nul",
    "a/b/../..?x=1#y%2F",
    b"\xff\xfe\x00raw",
    "~tilde",
    "x" * 500,
    "\ud800lone",
)
"""Ids that would be markup, another path, or something else than they look like."""


def register(hf: Holdfast, store: MonitorStore) -> None:
    """The work of this fleet: absorb, fail, run, tell."""

    @hf.absorber(hf.buffer("messages"), threshold=100, max_age=3600, backoff=0.05)
    async def remember(batch: Batch) -> None:
        return None

    @hf.absorber(hf.buffer("sour"), threshold=1, max_attempts=1)
    async def refuse(batch: Batch) -> None:
        raise ValueError("the model said <b>no</b>")

    @hf.runner(hf.runs("agent", slots=100), stop_grace=1.0)
    async def think(run: Any) -> str:
        for number in range((run.input or {}).get("events", 2)):
            await run.emit({"said": f"word {number}"})
        if (run.input or {}).get("wait", True):
            await asyncio.Event().wait()
        return "done"

    venues = hf.monitor("venues", store=store)

    @venues.subscriber("board", first=True)
    async def told(delivery: Delivery) -> None:
        return None

    @venues.subscriber("broken", sources=("dead",), first=True, retries=0, retry_delay=0.05)
    async def fails(delivery: Delivery) -> None:
        raise ValueError("nobody <i>listens</i>")


class House:
    """Runs in a thread with a loop of its own, so that the browser is never kept waiting by a test.

    `prefix`: mount the node there, in an application of somebody else. `ask` runs something on that loop."""

    def __init__(self, folder: Path, prefix: str = "", work: bool = True, **options: Any) -> None:
        self._folder = folder
        self._prefix = prefix
        self._work = work
        self._options = {"sample": 0.5, **options}
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="house", daemon=True)
        self.base = ""
        self.hf: Holdfast
        """A client of its own: what a test does with it, it does as another process would."""

    def __enter__(self) -> House:
        self.server = LocalServer().start()
        self._thread.start()
        assert self._ready.wait(30)
        if self._error is not None:
            self.server.stop()
            raise self._error
        return self

    def __exit__(self, *gone: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        self.server.stop()
        assert not self._thread.is_alive()

    def ask(self, work: Awaitable[T]) -> T:
        """The result of a call of the library, made where the node is."""

        async def go() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(go(), self._loop).result(30)

    def until(self, condition: Callable[[], Awaitable[Any]], within: float = 10.0) -> Any:
        from support.conditions import until

        return self.ask(until(condition, within))

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()

    async def _live(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        url = self.server.url
        with MonitorStore(f"sqlite:///{self._folder}/monitor.db") as store:
            async with (
                Holdfast(url, report=0.3, name="node") as hf,
                Holdfast(url, report=0.3, name="worker") as worker,
                Holdfast(url, report=0.3, name="hands") as self.hf,
            ):
                register(worker, store)
                working = asyncio.create_task(worker.work()) if self._work else None
                async with self._served(create(hf, store=store, **self._options)):
                    self._ready.set()
                    await self._stop.wait()
                if working is not None:
                    worker.stop_work()
                    working.cancel()
                    await asyncio.gather(working, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def _served(self, app: Any) -> AsyncIterator[None]:
        self.node: Node = app.node
        outer = Starlette(routes=[Mount(self._prefix, app)]) if self._prefix else app
        config = uvicorn.Config(outer, port=0, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        async with running(app):
            serving = asyncio.create_task(server.serve())
            while not server.started:
                await asyncio.sleep(0.01)
            port = server.servers[0].sockets[0].getsockname()[1]
            self.base = f"http://127.0.0.1:{port}{self._prefix}"
            yield
            app.node.close()
            server.should_exit = True
            await serving


async def furnish(hf: Holdfast) -> None:
    """Something on each page: hostile ids among it."""
    for number in range(12):
        await hf.buffer("waiting").extend(f"user-{number:02}", [{"secret": "what was said"}] * (number % 20 + 1))
    for name in HOSTILE:
        await hf.buffer("waiting").append(name, {"secret": "what was said"})
        await hf.sessions("chat").save(name, "what <b>was</b> said", role="user", user=name)
        await hf.runs("agent").start(name, {"wait": False, "events": 1}, key=name)
    for number in range(3):
        await hf.buffer("sour").append(f"sour-{number}", {"secret": "what was said"})
    await hf.monitor("venues").observe("site", ("court", 1), {"status": "free", "price": 20})
    await hf.monitor("venues").observe("site", ("court", 1), {"status": "taken", "price": 25})
    await hf.monitor("venues").observe("dead", "<u>thing</u>", {"status": "<s>gone</s>"})
    await hf.fleet.record("stop", "runs:agent/<em>x</em>", "because <script>", by="<b>me</b>")
