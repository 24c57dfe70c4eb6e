"""The servers a conformance test runs on, each started once for a test process and emptied before each test."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import redis

from holdfast.testing import LocalCluster, LocalSentinel, LocalServer, redis_binary

NAMES = ("valkey", "redis", "sentinel", "cluster")


class Backend:
    """A running server of one kind."""

    def __init__(self, kind: str, owner: Any) -> None:
        self.kind = kind
        self.owner = owner
        self._primaries: list[redis.Redis] = []

    @property
    def url(self) -> str:
        return str(self.owner.url)

    def primaries(self) -> list[redis.Redis]:
        """Clients of its primaries. They stay: to find and to reach them anew costs more than most tests do."""
        if not self._primaries:
            self._primaries = self._find_primaries()
        return self._primaries

    def _find_primaries(self) -> list[redis.Redis]:
        if self.kind == "cluster":
            nodes = {self.owner.node_for_slot(slot) for slot in (0, 6000, 16383)}
            return [node.client() for node in nodes]
        if self.kind == "sentinel":
            host, port = self.owner.primary()
            return [redis.Redis(host=host, port=port)]
        return [self.owner.client()]

    def flush(self) -> None:
        try:
            for client in self.primaries():
                client.flushall()
        except (redis.ConnectionError, redis.exceptions.ReadOnlyError):  # it was restarted, or has a new primary
            self.close()
            for client in self.primaries():
                client.flushall()

    def keys(self) -> dict[str, int]:
        """Every key with its remaining life in ms; -1: for ever."""
        found = {}
        for client in self.primaries():
            names = list(client.scan_iter(count=1000))
            pipe = client.pipeline(transaction=False)
            for name in names:
                pipe.pttl(name)
            found.update(zip((name.decode() for name in names), pipe.execute(), strict=True))
        return found

    def close(self) -> None:
        for client in self._primaries:
            client.close()
        self._primaries = []


def _at_ease() -> LocalSentinel:
    """Sentinels that ask as seldom as everywhere else: nobody fails over here, and in each process of the tests they
    would keep the machine busier than all other servers together."""
    service = LocalSentinel(replicas=1, down_after=20.0).start()
    for sentinel in service.sentinels:
        sentinel.call("SENTINEL", "DEBUG", "info-period", 10_000, "publish-period", 2000, "ask-period", 1000)
        sentinel.call("SENTINEL", "DEBUG", "ping-period", 1000)
    return service


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
        # Patient: where the machine stands still for two seconds, nobody shall fail over under these tests.
        makers: dict[str, Callable[[], Any]] = {
            "valkey": lambda: LocalServer().start(),
            "redis": lambda: LocalServer(binary=redis_binary()).start(),
            "sentinel": _at_ease,
            "cluster": lambda: LocalCluster(node_timeout=20.0).start(),
        }
        return makers[kind]()

    def close(self) -> None:
        for backend in self._running.values():
            backend.close()
            backend.owner.stop()
