from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from http_endpoint import Endpoint
from monitor_desk import Desks, Posts, closing

from holdfast.memory import MonitorStore
from support.backends import Backend


@pytest.fixture
async def desks(backend: Backend, api: str) -> AsyncIterator[Desks]:
    async for made in closing(Desks(backend, api)):
        yield made


@pytest.fixture
async def quick(valkey: Backend, api: str) -> AsyncIterator[Desks]:
    """One kind of server: for what takes time, or does not depend on the kind."""
    async for made in closing(Desks(valkey, api)):
        yield made


@pytest.fixture
async def hands(valkey: Backend) -> AsyncIterator[Desks]:
    """One kind of server and one twin: for a worker's steps by hand."""
    async for made in closing(Desks(valkey, "async")):
        yield made


@pytest.fixture
async def posts(valkey: Backend) -> AsyncIterator[Posts]:
    """Clients that work."""
    async for made in closing(Posts(valkey)):
        yield made


@pytest.fixture
async def everywhere(backend: Backend) -> AsyncIterator[Posts]:
    """Clients that work, on each kind of server."""
    async for made in closing(Posts(backend)):
        yield made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MonitorStore]:
    with MonitorStore(f"sqlite:///{tmp_path / 'monitor.db'}") as opened:
        yield opened


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as made:
        yield made
