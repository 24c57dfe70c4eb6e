"""Who takes part in the lock benchmarks, in which version, or why not; and the command that starts its worker."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys

from .. import peers
from ..harness import Contestant

# lib -> label, distribution, module to import
PYTHON = {
    "holdfast-async": ("Holdfast async", "holdfast", "holdfast:Holdfast"),
    "holdfast-sync": ("Holdfast sync", "holdfast", "holdfast.sync:Holdfast"),
    "holdfast-barging": ("Holdfast async, fair=False", "holdfast", "holdfast:Holdfast"),
    "redis-py-async": ("redis-py async", "redis", "redis.asyncio:Redis"),
    "redis-py-1ms": ("redis-py async, sleep=1 ms", "redis", "redis.asyncio:Redis"),
    "redis-py-sync": ("redis-py sync", "redis", "redis:Redis"),
    "python-redis-lock": ("python-redis-lock", "python-redis-lock", "redis_lock:Lock"),
    "pottery": ("pottery", "pottery", "pottery:Redlock"),
    "ping": ("(PING, one process)", "", "socket:socket"),
}
GO = {"rueidislock": "rueidislock (Go)", "redsync": "redsync (Go)"}
JAVA = {"redisson": "Redisson (Java)", "redisson-fair": "Redisson fair (Java)"}

HOLDFAST_ASYNC, HOLDFAST_SYNC = PYTHON["holdfast-async"][0], PYTHON["holdfast-sync"][0]
REDIS_PY_ASYNC, REDIS_PY_SYNC = PYTHON["redis-py-async"][0], PYTHON["redis-py-sync"][0]
PING = PYTHON["ping"][0]


def contestant(lib: str) -> Contestant:
    if lib in PYTHON:
        return _python(lib)
    built = peers.go_peer() if lib in GO else peers.java_peer()
    label = GO.get(lib) or JAVA[lib]
    return Contestant(label, lib, built.version(lib), built.reason)


def _python(lib: str) -> Contestant:
    label, distribution, target = PYTHON[lib]
    ours = lib.startswith("holdfast")
    module, _, attribute = target.partition(":")
    try:
        getattr(importlib.import_module(module), attribute)
        version = importlib.metadata.version(distribution) if distribution else ""
    except (ImportError, AttributeError) as error:
        return Contestant(label, lib, unavailable=str(error), ours=ours)
    return Contestant(label, lib, version, ours=ours)


def command(who: Contestant, addr: str, name: str, seconds: float, hold_ms: float, *extra: str) -> list[str]:
    """The command line of one worker. `extra` is for Python workers only."""
    arguments = [who.lib, addr, name, str(seconds), str(hold_ms)]
    if who.lib in PYTHON:
        return [sys.executable, "-m", "bench.locks.worker", *arguments, *extra]
    built = peers.go_peer() if who.lib in GO else peers.java_peer()
    return [*built.command, *arguments]
