"""The servers a conformance test runs on, each started once for a test process and emptied before each test."""

from __future__ import annotations

import os
from typing import Any

import pytest
import redis

from holdfast.testing import LocalCluster, LocalSentinel, LocalServer, redis_binary

NAMES = ("valkey", "redis", "sentinel", "cluster")


class Backend:
    """A running server of one kind. `servers` are redis-py clients of its primaries."""

    def __init__(self, kind: str, owner: Any) -> None:
        self.kind = kind
        self.owner = owner

    @property
    def url(self) -> str:
        return str(self.owner.url)

    def primaries(self) -> list[redis.Redis]:
        if self.kind == "cluster":
            nodes = {self.owner.node_for_slot(slot) for slot in (0, 6000, 16383)}
            return [node.client() for node in nodes]
        if self.kind == "sentinel":
            host, port = self.owner.primary()
            return [redis.Redis(host=host, port=port)]
        return [self.owner.client()]

    def flush(self) -> None:
        for client in self.primaries():
            client.flushall()
            client.close()

    def keys(self) -> dict[str, int]:
        """Every key with its remaining life in ms; -1: for ever."""
        found = {}
        for client in self.primaries():
            for key in client.scan_iter(count=1000):
                found[key.decode()] = client.pttl(key)
            client.close()
        return found


class Backends:
    def __init__(self) -> None:
        self._running: dict[str, Backend] = {}

    def get(self, kind: str) -> Backend:
        if kind not in self._running:
            self._running[kind] = Backend(kind, self._start(kind))
        return self._running[kind]

    @staticmethod
    def _start(kind: str) -> Any:
        if kind == "redis" and redis_binary() is None:
            if os.environ.get("CI"):
                pytest.fail("CI must have Debian's redis-tools: tools/system-packages installs it")
            pytest.skip("Debian's Redis is not installed")
        makers = {
            "valkey": LocalServer,
            "redis": lambda: LocalServer(binary=redis_binary()),
            # Patient: where the machine stands still for two seconds, nobody shall fail over under these tests.
            "sentinel": lambda: LocalSentinel(down_after=20.0),
            "cluster": lambda: LocalCluster(node_timeout=20.0),
        }
        return makers[kind]().__enter__()

    def close(self) -> None:
        for backend in self._running.values():
            backend.owner.__exit__(None, None, None)
