from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from support import again
from support.actors import Fleet
from support.backends import NAMES, Backend, Backends
from support.depth import DEEP
from support.faults import worth_a_thread

SELDOM = {"redis", "sentinel"}
CORE = {
    "test_buffer_conformance.py",
    "test_conformance.py",
    "test_monitor_conformance.py",
    "test_once_claims.py",
    "test_run_conformance.py",
    "test_session_conformance.py",
}
"""One for each room: what it is for, on every kind of server."""

# What a client tells the fleet in the background has tests of its own; here it would only come between.
os.environ.setdefault("HOLDFAST_REPORT", "0")


# Run in the background of a shell, everything started from here would be deaf to ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(again.OnceMoreAlone(config), "again")


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays until the end: looking for garbage in it takes as long as collecting."""
    gc.disable()
    yield
    gc.enable()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Not every test on every kind of server and on both twins, unless one goes deep."""
    if DEEP:
        return
    left_out = [item for item in items if _says_nothing_new(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(map(id, left_out))
        items[:] = [item for item in items if id(item) not in gone]


def _says_nothing_new(item: pytest.Item) -> bool:
    """What differs between servers is in flows and scripts, which both twins share; what differs between the twins does
    not depend on the server: so threads on two of the four kinds. A Sentinel's primary is the same server, found in
    another way, and a thread finds the node of a key as a task does: so these with one module of each room."""
    params = _params(item)
    blocking, kind = params.get("api") == "sync", params.get("backend")
    if blocking and kind in SELDOM:
        return True
    if (kind == "sentinel" or (blocking and kind == "cluster")) and "api" in params and item.path.name not in CORE:
        return True
    every = getattr(item, "originalname", "") in ("test_every_single_fault", "test_every_pair_of_faults")
    faults = (params["fault"],) if "fault" in params else params.get("pair")
    return every and blocking and faults is not None and not worth_a_thread(*faults)


def _params(item: pytest.Item) -> dict[str, Any]:
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
