from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from absorber_crew import Crew, crew_on
from buffer_boxes import Boxes, closing

from support.backends import Backend


@pytest.fixture
async def boxes(backend: Backend, api: str) -> AsyncIterator[Boxes]:
    async for made in closing(Boxes(backend, api)):
        yield made


@pytest.fixture
async def quick(valkey: Backend, api: str) -> AsyncIterator[Boxes]:
    """One kind of server: for what takes time, or does not depend on the kind."""
    async for made in closing(Boxes(valkey, api)):
        yield made


@pytest.fixture
async def crew(valkey: Backend) -> AsyncIterator[Crew]:
    async for made in crew_on(valkey):
        yield made
