from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from run_crew import Hands, hands_on
from run_rooms import Rooms, closing

from support.backends import Backend


@pytest.fixture
async def rooms(backend: Backend, api: str) -> AsyncIterator[Rooms]:
    async for made in closing(Rooms(backend, api)):
        yield made


@pytest.fixture
async def quick(valkey: Backend, api: str) -> AsyncIterator[Rooms]:
    """One kind of server: for what takes time, or does not depend on the kind."""
    async for made in closing(Rooms(valkey, api)):
        yield made


@pytest.fixture
async def hands(valkey: Backend) -> AsyncIterator[Hands]:
    async for made in hands_on(valkey):
        yield made


@pytest.fixture
async def everywhere(backend: Backend) -> AsyncIterator[Hands]:
    """Workers on each kind of server."""
    async for made in hands_on(backend):
        yield made
