from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from support import again
from support.actors import Fleet
from support.backends import NAMES, Backend, Backends
from support.depth import DEEP

SELDOM = {"redis", "sentinel"}

# What a client tells the fleet in the background has tests of its own; here it would only come between.
os.environ.setdefault("HOLDFAST_REPORT", "0")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(again.OnceMoreAlone(config), "again")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Threads on two of the four kinds of servers, unless one goes deep.

    What differs between servers is in flows and scripts, which both twins share; what differs between the twins does
    not depend on the server."""
    if DEEP:
        return
    left_out = [item for item in items if _params(item).get("api") == "sync" and _params(item).get("backend") in SELDOM]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(map(id, left_out))
        items[:] = [item for item in items if id(item) not in gone]


def _params(item: pytest.Item) -> dict[str, object]:
    return dict(item.callspec.params) if hasattr(item, "callspec") else {}


@pytest.fixture(scope="session")
def backends() -> Iterator[Backends]:
    running = Backends()
    yield running
    running.close()


@pytest.fixture(params=NAMES)
def backend(request: pytest.FixtureRequest, backends: Backends) -> Iterator[Backend]:
    """Each kind of server in turn, empty at the start; at the end no key may live for ever."""
    chosen = backends.get(request.param)
    chosen.flush()
    yield chosen
    eternal = [key for key, life in chosen.keys().items() if life == -1]
    assert not eternal, f"keys without a TTL: {eternal}"


@pytest.fixture
def valkey(backends: Backends) -> Iterator[Backend]:
    """One server, for what does not depend on the kind."""
    chosen = backends.get("valkey")
    chosen.flush()
    yield chosen
    eternal = [key for key, life in chosen.keys().items() if life == -1]
    assert not eternal, f"keys without a TTL: {eternal}"


@pytest.fixture(params=("async", "sync"))
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def fleet(backend: Backend, api: str) -> AsyncIterator[Fleet]:
    """Clients and actors on one kind of server and one twin. Closing must leave no thread, task, lock or waiter."""
    threads = set(threading.enumerate())
    tasks = asyncio.all_tasks()
    made = Fleet(backend.url, api)
    yield made
    await made.close()
    left = [t.name for t in threading.enumerate() if t not in threads and not t.name.startswith("asyncio_")]
    assert not left, f"threads left behind: {left}"
    lost = [t for t in asyncio.all_tasks() if t not in tasks and t is not asyncio.current_task()]
    assert not lost, f"tasks left behind: {lost}"
    keys = backend.keys()
    held = [k for k in keys if not k.endswith((":shard", ":audit")) and ":guard" not in k and "{guards" not in k]
    assert not held, f"locks or waiters left behind: {held}"
