from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from node_running import NodeHere, sqlite

import holdfast.sync


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeHere]:
    """A node on loopback without a token, on an embedded server of its own, with a store."""
    directory = tmp_path_factory.mktemp("node")
    with NodeHere(f"embedded://{directory}/server", sqlite(directory), max_wait=5.0, sample=0.5) as made:
        yield made


@pytest.fixture(scope="module")
def http(node: NodeHere) -> Iterator[httpx.Client]:
    with node.http() as client:
        yield client


@pytest.fixture(scope="module")
def hf(node: NodeHere) -> Iterator[holdfast.sync.Holdfast]:
    """The library on the same server: what the API says is held against it."""
    with holdfast.sync.Holdfast(node.url, name="library") as client:
        yield client
