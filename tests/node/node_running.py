"""A node in this process: the real server around it, in a thread with a loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import httpx

import holdfast.sync
from holdfast import Holdfast
from holdfast.memory import MonitorStore
from holdfast.node.app import NodeApp, create
from holdfast.node.serve import Served, _listen, _run
from support.conditions import until_blocking

OPERATOR = "operator-token-0123456789"
QUIET = {"report": 0.1, "sweep": 0.5, "drain": 1.0}


class NodeHere:
    """Serves until the block ends. `url` is of the server behind it; `address` is where it listens."""

    def __init__(self, url: str, store: str | None = None, settings: dict[str, Any] | None = None, **options: Any):
        self.url = url
        self.address = ""
        self.app: NodeApp
        self.store = store
        self._settings = {**QUIET, **(settings or {})}
        self._options = {"port": 0, **options}
        self._error: BaseException | None = None
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._main, name="node-here")

    def _main(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # told in the test's own thread
            self._error = error
        finally:
            self._up.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        store = None if self.store is None else MonitorStore(self.store).open()
        try:
            async with Holdfast(self.url, name="node", **self._settings) as hf:
                self.app = create(hf, store=store, **self._options)
                config = self.app.node.config
                with _listen(config) as listening:
                    code = await _run(
                        self.app, listening, config, self.url, _nobody, self._told, self._stop, asyncio.Event()
                    )
                assert code == 0
        finally:
            if store is not None:
                store.close()

    def _told(self, served: Served) -> None:
        self.address = served.address
        self._up.set()

    def start(self) -> Self:
        self._thread.start()
        self._up.wait(30)
        if self._error is not None:
            raise self._error
        return self

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        assert not self._thread.is_alive(), "the node does not end"
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def http(self, token: str | None = None, **options: Any) -> httpx.Client:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.address, headers=headers, timeout=10, verify=False, **options)

    def do(self, work: Any) -> Any:
        """Run a coroutine on the node's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


async def _nobody(*_: Any) -> int:
    raise AssertionError("this node has no workers")


def sqlite(directory: Path) -> str:
    return f"sqlite:///{directory / 'holdfast.db'}"


@contextlib.contextmanager
def working(client: holdfast.sync.Holdfast) -> Iterator[None]:
    """A client of the library that works, in a thread, until the block ends."""
    thread = threading.Thread(target=client.work, name="works-beside-the-node")
    thread.start()
    try:
        yield
    finally:
        client.stop_work()
        thread.join(30)


def read_events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Server-Sent Events, as they come."""
    event: dict[str, Any] = {}
    for line in lines:
        if not line:
            if "id" in event:
                yield event
            event = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            event[name] = json.loads(value) if name == "data" else value


def problem(answer: httpx.Response, status: int, name: str = "") -> dict[str, Any]:
    """It is this problem, said as problem+json; answers it."""
    assert answer.status_code == status, f"{answer.status_code} {answer.text[:500]}"
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["status"] == status
    assert body["title"]
    assert body["detail"]
    if name:
        assert body["type"] == f"urn:holdfast:problem:{name}", body
    return body


def good(answer: httpx.Response, status: int = 200) -> Any:
    """It went well; answers what it says."""
    assert answer.status_code == status, f"{answer.status_code} {answer.text[:500]}"
    return answer.json() if status != 204 else None


wait_until = until_blocking
