"""pytest fixtures. They are there as soon as `holdfast[testing]` is installed; a test only has to name them.

    holdfast_server      a private local server, empty at the start of each test
    holdfast_url         its URL
    holdfast_proxy       a FaultProxy in front of it
    holdfast             a blocking Holdfast client on holdfast_url, closed after the test
    holdfast_client      a factory of asyncio clients: `async with holdfast_client() as hf: ...`
    holdfast_sentinel    a Sentinel set-up, started once for the session
    holdfast_cluster     a Cluster, started once for the session

There is no asyncio client as a fixture: that would tie every user to one of the async pytest plugins. The
factory works under all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from holdfast import Holdfast
    from holdfast.sync import Holdfast as BlockingHoldfast

    from .cluster import LocalCluster
    from .proxy import FaultProxy
    from .sentinel import LocalSentinel
    from .server import LocalServer

# Imports of the rest are inside the fixtures: pytest loads this file in every project that has holdfast
# installed.


@pytest.fixture(scope="session")
def _holdfast_session_server() -> Iterator[LocalServer]:
    from .server import LocalServer

    with LocalServer() as server:
        yield server


@pytest.fixture
def holdfast_server(_holdfast_session_server: LocalServer) -> LocalServer:
    """A server of this session alone, empty and running, whatever the last test did to it."""
    server = _holdfast_session_server
    server.revive()
    # Only ever sent to the process started above. Never point this fixture at a server somebody else uses.
    server.call("FLUSHALL", "SYNC")
    return server


@pytest.fixture
def holdfast_url(holdfast_server: LocalServer) -> str:
    """The URL of `holdfast_server`."""
    return holdfast_server.url


@pytest.fixture
def holdfast_proxy(holdfast_server: LocalServer) -> Iterator[FaultProxy]:
    """A fault proxy in front of `holdfast_server`. It starts healthy."""
    from .proxy import FaultProxy

    with FaultProxy(holdfast_server.host, holdfast_server.port) as proxy:
        yield proxy


@pytest.fixture
def holdfast(holdfast_url: str) -> Iterator[BlockingHoldfast]:
    """A blocking `holdfast.sync.Holdfast` on `holdfast_url`, closed after the test."""
    from holdfast.sync import Holdfast

    with Holdfast(holdfast_url) as client:
        yield client


@pytest.fixture
def holdfast_client(holdfast_url: str) -> Callable[..., Holdfast]:
    """Make an asyncio client: `async with holdfast_client() as hf`. Takes another URL and any option of Holdfast."""
    from holdfast import Holdfast

    def make(url: str | None = None, **options: Any) -> Holdfast:
        return Holdfast(url or holdfast_url, **options)

    return make


@pytest.fixture(scope="session")
def holdfast_sentinel() -> Iterator[LocalSentinel]:
    """One primary, two replicas, three sentinels. A test that breaks it calls `restart_dead()` after."""
    from .sentinel import LocalSentinel

    with LocalSentinel() as sentinel:
        yield sentinel


@pytest.fixture(scope="session")
def holdfast_cluster() -> Iterator[LocalCluster]:
    """Three primaries with a replica each. A test that breaks it calls `restart_dead()` after."""
    from .cluster import LocalCluster

    with LocalCluster() as cluster:
        yield cluster
