from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from once_desk import Desks, closing

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
async def tasks(backend: Backend) -> AsyncIterator[Desks]:
    """For what only tasks can do, or can be done to them."""
    async for made in closing(Desks(backend, "async")):
        yield made
