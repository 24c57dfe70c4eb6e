"""Free TCP ports on the loopback interface."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from pathlib import Path

from .processes import LocalServerError

# A cluster node listens for its peers on its port plus this.
CLUSTER_BUS_OFFSET = 10_000

_LOWEST = 10_240
_HIGHEST = 65_535
_ATTEMPTS = 200


def free_port(*, cluster: bool = False) -> int:
    """A port that nobody on 127.0.0.1 uses now. With `cluster`, the one 10000 above it is free too.

    The port may be taken again before it is used, so whoever starts a server on it must be ready to ask for
    another.
    """
    pick = _picker(cluster)
    for _ in range(_ATTEMPTS):
        port = pick()
        bus = port + CLUSTER_BUS_OFFSET
        if _is_free(port) and (not cluster or (bus <= _HIGHEST and _is_free(bus))):
            return port
    raise LocalServerError(f"Free some TCP ports on 127.0.0.1: {_ATTEMPTS} tries found none that is unused.")


def _picker(cluster: bool) -> Callable[[], int]:
    """Prefer ports below the range that the kernel hands to outgoing connections.

    A killed server leaves its port unused until it is restarted. In the kernel's range an outgoing connection
    may take it meanwhile; worse, a client that keeps dialling it will one day be given that very port as its
    source and connect to itself.
    """
    ceiling = _first_ephemeral_port() - (CLUSTER_BUS_OFFSET if cluster else 0)
    room = ceiling - _LOWEST
    if room < 1000:
        return _kernels_choice
    return lambda: _LOWEST + secrets.randbelow(room)


def _first_ephemeral_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 49_152  # the IANA range, which macOS and the BSDs keep to


def _kernels_choice() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _is_free(port: int) -> bool:
    # Without SO_REUSEADDR, so that a port with connections still winding down does not count as free.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
